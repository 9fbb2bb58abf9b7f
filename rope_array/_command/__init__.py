"""The commands of ``python -m rope_array`` that have no package of their own."""
