"""README.md for a page outside the repository, such as the package index's.

A build calls `dynamic_metadata`, which pyproject.toml names under [[tool.dynamic-metadata]].
"""

import re
from pathlib import Path

RELATIVE = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")  # a link or a picture


def outside(text: str, repository: str, tag: str) -> str:
    """Make relative links and pictures absolute, at a tag of the repository.

    Without a repository's address a link becomes its text, and a picture is left out.
    """

    def absolute(match: re.Match[str]) -> str:
        mark, label, path = match.groups()
        if not repository:
            return "" if mark else label
        return f"{mark}[{label}]({repository}/{'raw' if mark else 'blob'}/{tag}/{path})"

    return RELATIVE.sub(absolute, text)


def dynamic_metadata(settings: object, project: dict) -> dict:
    """Return the field `readme`; the repository is `Source` of [project.urls]."""
    repository = project.get("urls", {}).get("Source", "").rstrip("/")
    text = outside(Path("README.md").read_text("utf-8"), repository, f"v{project['version']}")
    return {"readme": {"text": text, "content-type": "text/markdown"}}
