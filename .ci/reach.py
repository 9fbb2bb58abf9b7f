"""Which tests a change reaches, by the texts of the files: no list of folders is kept by hand.

A file reads the modules that it imports, in programs inside strings too, and the scripts and data that it
names: files, patterns of files, folders and modules in quotes. Modules of the package are not followed: a
test that imports one of them reads its folder, and every push tests the public names.
"""

import re
import subprocess
from collections.abc import Collection, Iterable
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ("rope_array/", "backends/")
# Folders whose files are imported by their names alone, and the root.
IMPORTED_FROM = ("tests/", "tests/long/", "bench/", "")
# Every test reads these.
ALWAYS = ("pyproject.toml", "CMakeLists.txt", "noxfile.py", ".ci/sessions.toml", "tests/conftest.py")
IMPORT = re.compile(r"^[ \t]*(?:from ([\w.]+) import (\([^)]*\)|[^\n#]*)|import ([\w., ]+))", re.MULTILINE)


# ---- the change ----


def git(*args: str) -> frozenset[str]:
    """Return the lines that a command of git prints; none if it fails."""
    done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=False)
    return frozenset(filter(None, done.stdout.splitlines()))


@cache
def changed_paths() -> frozenset[str] | None:
    """Return the paths of commits that no remote has, and of uncommitted changes; None without a remote."""
    unpushed = git("log", "HEAD", "--not", "--remotes", "--name-only", "--pretty=format:")
    return unpushed | uncommitted_paths() if git("rev-parse", "--remotes") else None


def uncommitted_paths() -> frozenset[str]:
    """Return the paths that differ from the last commit."""
    return git("diff", "--name-only", "HEAD") | git("ls-files", "--others", "--exclude-standard")


# ---- what a file reads ----


@cache
def all_paths() -> frozenset[str]:
    """Return the paths of all files that git does not ignore."""
    paths = git("ls-files", "--cached", "--others", "--exclude-standard")
    return frozenset(path for path in paths if (ROOT / path).is_file())  # not of one that is deleted


@cache
def named_paths() -> dict[str, list[str]]:
    """Return the paths of scripts and data by their names, and of data by the names of inner folders too."""
    paths: dict[str, list[str]] = {}
    for path in all_paths():
        *folders, name = path.split("/")
        names = [name] if name.endswith(".py") else [name, *folders[1:]]
        for each in names if not name.startswith(("test_", "__")) else ():
            paths.setdefault(each, []).append(path)
    return paths


@cache
def reads(path: str) -> frozenset[str]:
    """Return the paths that a file of Python reads itself."""
    text = (ROOT / path).read_text("utf-8") if path.endswith(".py") else ""
    words = {*re.findall(r"[\w-]+\.[\w.-]+", text), *re.findall(r"[\"'/]([\w-]+)[\"'/]", text)}
    patterns = re.findall(r"[\"'/]([\w-]*\*[\w*-]*\.(?!py\b)\w+)[\"']", text)
    names = [name for name in named_paths() if name in words or any(fnmatch(name, p) for p in patterns)]
    return imports_of(path, text).union(*(named_paths()[name] for name in names))


def imports_of(path: str, text: str) -> frozenset[str]:
    """Return the paths of the modules that a text imports, and of the quoted names with a dot."""
    names = {*re.findall(r"[\"'](\w+\.[\w.]+)[\"']", text)}
    for module, members, modules in IMPORT.findall(text):
        names |= {module, *(f"{module}.{name}" for name in re.findall(r"\w+", members))}
        names |= {*re.findall(r"[\w.]+", modules)}
    files = {name.lstrip(".").replace("rope_array._backends", "backends").replace(".", "/") for name in names}
    places = (*IMPORTED_FROM, f"{path.rpartition('/')[0]}/")
    ends = (".py", "/__init__.py")
    return all_paths() & {f"{place}{file}{end}" for place in places for file in files - {""} for end in ends}


@cache
def read_by(test: str) -> frozenset[str]:
    """Return the paths of all files that a test reads; a path that ends in "/" is a folder of the package."""
    found, left = set(ALWAYS), {test}
    while left:
        path = left.pop()
        if path.startswith(PACKAGE):
            found.add(f"{path.rpartition('/')[0]}/" if path.count("/") > 1 else path)
        elif path not in found:
            found.add(path)
            left |= reads(path)
    return frozenset(found)


# ---- what a change reaches ----


def is_reached(tests: Iterable[str], paths: Collection[str] | None) -> bool:
    """Return whether one of the tests reads one of the paths; None is any path."""
    read = {path for test in all_paths().intersection(tests) for path in read_by(test)}
    folders = tuple(path for path in read if path.endswith("/"))
    return paths is None or any(path in read or path.startswith(folders) for path in paths)


def tests_of(paths: Collection[str]) -> list[str]:
    """Return the test files that show whether a change of paths is right, the nearest first."""
    tests = sorted(path for path in all_paths() if fnmatch(path, "tests/test_*.py"))
    nearest = {test: max((nearness(test, path) for path in paths), default=()) for test in tests}
    return sorted(
        (test for test in tests if any(nearest[test])), key=lambda test: nearest[test], reverse=True
    )


def nearness(test: str, path: str) -> tuple[bool, ...]:
    """Return what joins a test file to a path, the strongest sign first."""
    folder, _, name = path.rpartition("/")
    if not path.startswith(PACKAGE):
        return path == test, path in reads(test), path in read_by(test) and path not in ALWAYS
    named = (
        bool(words_of(name) & words_of(test)),
        path in reads(test),
        bool(words_of(folder) & words_of(test)),
    )
    return *named, test == "tests/test_conformance.py"


def words_of(path: str) -> set[str]:
    """Return the words in the names of folders and files."""
    return {*re.findall(r"[a-z0-9]+", path)} - {"tests", "test", "py"}
