"""The version of the package that Python imports: a checkout's, or the installed one."""

import tomllib
from importlib import metadata
from pathlib import Path

_PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def version() -> str:
    """Return the sources' version with ``+checkout``, the installed version, or ``0+unknown``."""
    try:
        project = tomllib.loads(_PYPROJECT.read_text("utf-8"))["project"]
        if project["name"] == "rope-array":
            return f"{project['version']}+checkout"
    except (OSError, ValueError, KeyError):  # installed, or next to another project's file
        pass
    try:
        return metadata.version("rope-array")
    except metadata.PackageNotFoundError:
        return "0+unknown"
