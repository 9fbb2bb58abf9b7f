"""The rotation on any library, written against the Python Array API: parsing, checks, arithmetic.

`tables` has the entry points of the array-api backend, `checks` the checks of every backend's calls.
"""
