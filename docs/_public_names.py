"""The list of public names, a line each. `PYTHONPATH=. python docs/_public_names.py` writes public_names.txt.

Run it in the checkout, with PyTorch installed. A line that goes or changes breaks programs of users: the
section "Changes between versions" of docs/install.md says when it may.
"""

import importlib
import inspect
import re
import tomllib
import types
from pathlib import Path

import rope_array
from rope_array import testing
from rope_array.__main__ import _parser
from rope_array._registry import GROUP
from rope_array.testing import plugin
from rope_array.testing._checks import checks
from rope_array.testing._claims import CAPABILITIES

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "public_names.txt"
OPERATORS = {"__getitem__", "__iter__", "__len__"}


def signature(function):
    """Return the parameters and their defaults; annotations differ between versions of Python."""
    parameters = inspect.signature(function).parameters.values()
    return str(inspect.Signature([p.replace(annotation=p.empty) for p in parameters]))


def of_class(name, cls):
    """Yield the constructor, and fields, properties and methods; of an exception, its bases."""
    if issubclass(cls, BaseException):
        yield f"{name}: {', '.join(base.__name__ for base in cls.__bases__)}"
        return
    yield name + signature(cls)
    bases = [vars(base) for base in cls.__mro__ if base.__module__.startswith("rope_array")]
    members = {m for base in bases for m in (*base, *base.get("__dataclass_fields__", ()))}
    if cls is testing.Target:  # the suite's own attributes are not in the reference
        members &= inspect.signature(cls).parameters.keys()
    for member in sorted(m for m in members if not m.startswith("_") or m in OPERATORS):
        value = inspect.getattr_static(cls, member, None)
        function = getattr(value, "__func__", value)
        yield f"{name}.{member}{signature(function) if callable(function) else ''}"


def of_module(module):
    for name in (name for name in dir(module) if not name.startswith("_")):
        value, full = getattr(module, name), f"{module.__name__}.{name}"
        if inspect.isclass(value):
            yield from of_class(full, value)
        elif not isinstance(value, types.ModuleType):
            yield full + (signature(value) if callable(value) else "")


def of_commands():
    (commands,) = _parser()._subparsers._group_actions
    for name, parser in commands.choices.items():
        for action in parser._actions[1:]:  # after --help
            names = ", ".join(action.option_strings), action.metavar
            yield " ".join(["python -m rope_array", name, *filter(None, names)])
    yield from ("pytest -p rope_array.testing.plugin --rope-" + name for name in ("backend", *plugin.OPTIONS))


def of_suite():
    dtypes = {}
    for check in checks():
        name, _, dtype = check.name.partition("[")
        dtypes.setdefault(name, []).append(dtype.strip("]"))
    yield from (f"check {name} {' '.join(dtypes[name])}".strip() for name in dtypes)
    yield from (f"capability {name}" for name in CAPABILITIES)


def of_installation():
    """Yield extras, entry points, and the variables that a page of the documentation has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    yield from (f"extra {name}" for name in project["optional-dependencies"])
    yield from (
        f"entry point of {group}: {name}"
        for group in project["entry-points"]
        for name in project["entry-points"][group]
    )
    yield f"entry points of other packages: {GROUP}"
    pages, *sources = (
        {variable for path in paths for variable in re.findall(r"\bROPE_ARRAY_\w+", path.read_text("utf-8"))}
        for paths in (
            (ROOT / "docs").rglob("*.md"),
            [ROOT / "pyproject.toml", ROOT / "CMakeLists.txt"],
            [path for folder in ("rope_array", "backends") for path in (ROOT / folder).rglob("*.[pc]*[yp]")],
        )
    )
    yield from (f"variable {name}" for name in pages & set.union(*sources))


SECTIONS = {
    name: lambda name=name: of_module(importlib.import_module(name))
    for name in ("rope_array", *(f"rope_array.{name}" for name in rope_array._MODULES))
} | {"commands": of_commands, "suite": of_suite, "installation": of_installation}


def text_of(section):
    return "\n".join([f"# {section}", *sorted(SECTIONS[section]())]) + "\n"


if __name__ == "__main__":
    FILE.write_text("\n".join(map(text_of, SECTIONS)), "utf-8", newline="\n")
