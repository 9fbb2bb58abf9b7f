"""What every implementation of rotary position embedding is held to; needs NumPy and the standard library."""

from rope_array.testing._definition import apply_definition, cos_sin, frequencies, rotation_matrix

__all__ = ["apply_definition", "cos_sin", "frequencies", "rotation_matrix"]
