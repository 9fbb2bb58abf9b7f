"""NumPy: the C++ kernel, in `native`; without it, the array-api backend rotates NumPy's arrays."""
