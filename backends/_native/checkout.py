"""The sources of the kernel, in the checkout from which pip installed rope_array."""

import json
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname


def changed_since(sources_hash: str) -> Path | None:
    """Return the checkout if the hash of its sources is another; None if not, or if it cannot be told."""
    try:
        root = installed_from()
        return root if root and sources_hash and hash_of_sources(root) not in ("", sources_hash) else None
    except (OSError, ValueError, KeyError):  # sources of another user, or a record that is not PEP 610's
        return None


def installed_from() -> Path | None:
    """Return the folder from which pip installed rope_array, by PEP 610's record; None if it was a file."""
    try:
        origin = json.loads(distribution("rope-array").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return None
    return Path(url2pathname(urlsplit(origin["url"]).path)) if "dir_info" in origin else None


def hash_of_sources(root: Path) -> str:
    """Return a hash of the kernel's sources, as CMakeLists.txt computes it; "" if there are none."""
    files = (path.relative_to(root) for path in (root / "backends" / "_native").rglob("*.*"))
    sources = [
        path.as_posix()
        for path in files
        if path.suffix in (".cpp", ".h", ".hpp") and not path.name.startswith(".")
    ]
    if not sources:
        return ""
    paths = sorted([*sources, "CMakeLists.txt"])
    hashes = (f"{path} {sha256((root / path).read_bytes()).hexdigest()}\n" for path in paths)
    return sha256("".join(hashes).encode()).hexdigest()
