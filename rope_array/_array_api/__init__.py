"""The array-api backend: the rotation on any library, written against the Python Array API."""
