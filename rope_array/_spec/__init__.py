"""The spec of a rotary embedding as plain numbers: no arrays."""
