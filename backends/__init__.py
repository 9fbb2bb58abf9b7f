"""The backends of rope_array, one folder per library; installed as ``rope_array._backends``.

No module in here is imported before an array of its library is seen.
"""

if __name__ != "rope_array._backends":
    raise ImportError(
        f"{__name__!r} is the source folder of 'rope_array._backends'; imported under its own name, it would "
        "hold second copies of every module. Import 'rope_array._backends'."
    )
