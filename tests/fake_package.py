"""Install a package with an entry point for a backend, as an installer does, in a folder on the path."""

from rope_array import _registry
from rope_array._array_api import library
from rope_array._dynamo import traced_memo_of_one


def write_metadata(folder, name, entry_points):
    """Write the metadata of a package: its name and its entry points, a section of an ini file."""
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", "utf-8")
    (about / "entry_points.txt").write_text(entry_points, "utf-8")


def forget_records(monkeypatch):
    """Let the registry read the entry points anew, for the duration of a test."""
    monkeypatch.setattr(_registry, "_records", None)
    monkeypatch.setattr(_registry, "_broken", {})
    monkeypatch.setattr(_registry, "backends_of", traced_memo_of_one(_registry._load_backends))
    monkeypatch.setattr(library, "_libraries", {})


def install(folder, name, module, point=None):
    """Write a module with a RECORD, and its entry point; without a module, the entry point alone."""
    write_metadata(folder, name, f"[rope_array.backends]\n{point or name} = {name}:RECORD\n")
    if module is not None:
        (folder / f"{name}.py").write_text(module, "utf-8")
