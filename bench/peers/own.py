"""rope_array's own paths, by their names in the suite."""

from ._note import Note

NAMES = ("numpy", "torch", "jax")
NOTES = {name: Note(f"`python -m rope_array check {name}`") for name in NAMES}


def targets() -> list[str]:
    return list(NAMES)
