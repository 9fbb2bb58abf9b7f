"""The sources of the kernel, in the checkout from which pip installed rope_array."""

import json
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

EDITABLE = "--no-build-isolation --no-deps -Ccmake.define.ROPE_ARRAY_THIS_PROCESSOR=ON -e "


def outdated(sources_hash: str) -> str:
    """Return `outdated_in` of the checkout from which pip installed rope_array, by PEP 610's record."""
    try:
        origin = json.loads(distribution("rope-array").read_text("direct_url.json") or "{}")
        root = Path(url2pathname(urlsplit(origin["url"]).path))
        return outdated_in(root, sources_hash, editable=origin["dir_info"].get("editable", False))
    except (PackageNotFoundError, OSError, ValueError, KeyError):  # not from a folder, or of another user
        return ""


def outdated_in(root: Path, sources_hash: str, editable: bool = True) -> str:
    """Return that a kernel is of other sources than a checkout has, and CONTRIBUTING.md's command; or ""."""
    if not sources_hash or hash_of_sources(root) in ("", sources_hash):
        return ""
    command = f'python -m pip install -v {EDITABLE if editable else ""}"{root}"'
    return f"the C++ kernel was compiled from other sources than {root} has: `{command}` compiles these"


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
