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
FAR = 9  # no distance of a test file from a path
# Every test reads these.
ALWAYS = ("pyproject.toml", "CMakeLists.txt", "noxfile.py", "tests/conftest.py")
IMPORT = re.compile(r"^[ \t]*(?:from ([\w.]+) import (\([^)]*\)|[^\n#]*)|import ([\w., ]+))", re.MULTILINE)


def git(*args: str) -> list[str]:
    """Return the lines that a command of git prints; none if it fails."""
    done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=False)
    return [*filter(None, done.stdout.splitlines())]


@cache
def changed_paths() -> frozenset[str] | None:
    """Return the paths of commits that no remote has, and of uncommitted changes; None without a remote."""
    if not git("rev-parse", "--remotes"):
        return None
    unpushed = git("log", "HEAD", "--not", "--remotes", "--name-only", "--pretty=format:")
    return frozenset(unpushed) | uncommitted_paths()


def uncommitted_paths() -> frozenset[str]:
    """Return the paths that differ from the last commit."""
    untracked = git("ls-files", "--others", "--exclude-standard")
    return frozenset(git("diff", "--name-only", "HEAD")).union(untracked)


@cache
def all_paths() -> frozenset[str]:
    """Return the paths of all files that git does not ignore."""
    paths = git("ls-files", "--cached", "--others", "--exclude-standard")
    return frozenset(path for path in paths if (ROOT / path).is_file())  # not of one that is deleted


@cache
def text_of(path: str) -> str:
    """Return the text of a Python file; of another, an empty one."""
    return (ROOT / path).read_text("utf-8") if path.endswith(".py") else ""


@cache
def data() -> dict[str, list[str]]:
    """Return the paths of data and scripts by their names, and of data by the names of inner folders too."""
    paths: dict[str, list[str]] = {}
    for path in all_paths():
        *folders, name = path.split("/")
        is_code = name.endswith(".py")
        for key in () if name.startswith(("test_", "__")) else (name, *([] if is_code else folders[1:])):
            paths.setdefault(key, []).append(path)
    return paths


@cache
def imports_of(path: str) -> frozenset[str]:
    """Return the paths of the modules that a file imports, and of those with a dot that it quotes."""
    text = text_of(path)
    names = {*re.findall(r"[\"'](\w+\.[\w.]+)[\"']", text)}
    for module, members, modules in IMPORT.findall(text):
        names |= {module, *(f"{module}.{name}" for name in re.findall(r"\w+", members))}
        names |= {*re.findall(r"[\w.]+", modules)}
    places = (*IMPORTED_FROM, f"{path.rpartition('/')[0]}/")
    files = (f"{place}{file_of(name)}" for name in names if name for place in places)
    return frozenset(each for file in files for each in (f"{file}.py", f"{file}/__init__.py")) & all_paths()


def file_of(name: str) -> str:
    """Return the path of a module, without its suffix."""
    return name.lstrip(".").replace("rope_array._backends", "backends").replace(".", "/")


@cache
def data_of(path: str) -> frozenset[str]:
    """Return the paths of the files that a file names, alone, by a pattern, or by their folder."""
    text = text_of(path)
    words = {*re.findall(r"[\w-]+\.[\w.-]+", text), *re.findall(r"[\"'/]([\w-]+)[\"'/]", text)}
    patterns = re.findall(r"[\"'/]([\w-]*\*[\w*-]*\.\w+)[\"']", text)
    names = [name for name in data() if name in words or any(fnmatch(name, each) for each in patterns)]
    return frozenset(each for name in names for each in data()[name])


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
            left |= imports_of(path) | data_of(path)
    return frozenset(found)


def is_reached(tests: Iterable[str], paths: Collection[str] | None) -> bool:
    """Return whether one of the tests reads one of the paths; None is any path."""
    read = {path for test in all_paths().intersection(tests) for path in read_by(test)}
    folders = tuple(path for path in read if path.endswith("/"))
    return paths is None or any(path in read or path.startswith(folders) for path in paths)


def tests_of(paths: Iterable[str]) -> list[str]:
    """Return the test files that show whether a change of paths is right, the nearest first."""
    tests = [path for path in all_paths() if fnmatch(path, "tests/test_*.py")]
    distances = {test: min((distance(test, path) for path in paths), default=FAR) for test in tests}
    return sorted((test for test in tests if distances[test] < FAR), key=lambda test: (distances[test], test))


def distance(test: str, path: str) -> int:
    """Return how far a test file is from a path: a small number, or FAR if it says nothing about it."""
    folder, _, name = path.rpartition("/")
    if path.startswith(PACKAGE):
        near = (
            words_of(name) & words_of(test),
            path in imports_of(test),
            words_of(folder) & words_of(test),
            test == "tests/test_conformance.py",
        )
    else:
        near = (path == test, path in imports_of(test) | data_of(test), path in read_by(test) - {*ALWAYS})
    return next((i for i, is_near in enumerate(near) if is_near), FAR)


def words_of(path: str) -> set[str]:
    """Return the words in the names of folders and files."""
    return {*re.split(r"[/_.]+", path)} - {"tests", "test", "py"}


def words_about(paths: Iterable[str], test: str) -> set[str]:
    """Return the words of paths, of a test file's name, and of its marks, which name libraries."""
    marks = re.findall(r"\blibrary\(([^)]*)\)", text_of(test))
    return {word for text in (*paths, test, *marks) for word in re.findall(r"[a-z]+", text)}
