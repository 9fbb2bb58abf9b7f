"""Imports: libraries loaded, imports allowed, public names, and first calls of many threads."""

from __future__ import annotations

import ast
import contextlib
import doctest
import functools
import importlib
import inspect
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import child
import numpy as np
import pytest
from threads import in_threads

import rope_array
import rope_array.testing
from rope_array._array_api import library as _library

PACKAGE = Path(rope_array.__file__).parent
# Installed: a folder of the package. In a checkout: a folder next to the package, or a link to it.
BACKENDS = PACKAGE / "_backends" if (PACKAGE / "_backends").is_dir() else PACKAGE.parent / "backends"
LIBRARIES = ["numpy", "torch", "jax", "jaxlib", "dask", "cupy", "array_api_strict", "ml_dtypes"]
LIBRARIES += ["mlx", "ndonnx", "tensorflow"]

# ---- import rope_array ----

IMPORTED = """
import importlib, sys
importlib.import_module(sys.argv[1])
print(*sorted({name.partition(".")[0] for name in sys.modules} & set(sys.argv[2:])))
"""


def imported_by(module: str, before: str = "", **environment: str) -> set[str]:
    """Return the array libraries in sys.modules after `import module`."""
    return set(child.run(f"{before}\n{IMPORTED}", module, *LIBRARIES, **environment).split())


def from_folder(folder: Path) -> dict[str, str]:
    """Return the environment of a child that imports from `folder` first, not from its working directory."""
    return {"PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}


def test_importing_brings_in_no_array_library(lib: Any) -> None:
    """Each session installs one library, the only library that could be imported."""
    importlib.import_module(lib.module)
    assert imported_by("rope_array") == set()


@pytest.mark.parametrize("module", ["numpy", "array_api_compat.numpy"])
def test_imported_by_finds_numpy(module: str) -> None:
    assert imported_by("rope_array", f"import {module}") == {"numpy"}


@pytest.mark.parametrize("name", ["_spec/frequencies", "_errors", "_registry", "__init__"])
def test_a_package_that_imports_numpy_is_found(name: str, tmp_path: Path) -> None:
    copied = copy_of_package(tmp_path)
    with (copied / f"{name}.py").open("a", encoding="utf-8") as file:
        file.write("\nimport numpy\n")
    assert imported_by("rope_array", **from_folder(tmp_path)) == {"numpy"}


def test_an_unchanged_copy_imports_no_library(tmp_path: Path) -> None:
    copied = copy_of_package(tmp_path)
    assert imported_by("rope_array", **from_folder(tmp_path)) == set()
    where = child.run("import rope_array; print(rope_array.__file__)", **from_folder(tmp_path))
    assert Path(where.strip()).parent == copied  # the child imported the copy


def test_late_modules_are_imported_on_first_use() -> None:
    names = ("_config", "_diagnose", "_spec.scaling", "config", "convert", "hf", "positions", "torch")
    late = {f"rope_array.{name}" for name in names}
    script = "import sys, rope_array as ra; a = set(sys.modules); {}; print(*a, '|', *sys.modules)"
    for use, wanted in [
        ("ra.RoPE(4).frequencies", set()),
        ("ra.Linear(2.0)", {"rope_array._spec.scaling"}),
        ("ra.RoPE.from_config({'model_type': 'llama'})", {"rope_array._config", "rope_array._spec.scaling"}),
        ("ra.config", {"rope_array._config", "rope_array._spec.scaling", "rope_array.config"}),
        ("ra.hf.patch", {"rope_array.hf"}),
    ]:
        before, after = child.run(script.format(use)).split("|")
        assert set(before.split()) & late == set()
        assert set(after.split()) & late == wanted


def test_using_one_library_brings_in_no_other(lib: Any) -> None:
    script = """
        import sys
        from conftest import LIBS
        import numpy as np
        lib = LIBS[sys.argv[1]]
        x = lib.asarray(np.ones((2, 4)), "float32")
        before = set(sys.modules)  # jax imports ml_dtypes
        import rope_array as ra
        rope = ra.RoPE(4)
        for y in (ra.apply(x, [0, 1]), rope.rotation(3, like=x).apply(x), rope.matrix(1, like=x)):
            lib.to_numpy(y)
        new = {name.partition(".")[0] for name in sys.modules} - {name.partition(".")[0] for name in before}
        print(*sorted(new & set(sys.argv[2:])))
        print(*sorted(name for name in sys.modules if name.startswith("rope_array._backends.")))
    """
    libraries, backends = child.run(script, lib.label, *LIBRARIES).splitlines()
    assert not libraries.split()
    chunks = {"numpy"} if lib.name == "dask" else set()  # its chunks are NumPy arrays
    assert {name.split(".")[2] for name in backends.split()} <= {lib.name, "_native", *chunks}


def test_the_judge_needs_numpy_only() -> None:
    assert imported_by("rope_array.testing") == {"numpy"}
    assert imported_by("rope_array.__main__") <= {"numpy"}


# ---- who may import whom ----


def copy_of_package(folder: Path) -> Path:
    """Copy the package, backends inside, to `folder`/rope_array."""
    ignore = shutil.ignore_patterns("__pycache__", "_backends")
    copied = shutil.copytree(PACKAGE, folder / "rope_array", ignore=ignore)
    shutil.copytree(BACKENDS, copied / "_backends", ignore=shutil.ignore_patterns("__pycache__"))
    return copied


STDLIB = sys.stdlib_module_names
# The imports that each folder or module of the core may have from the package.
MAY_IMPORT = {
    "_errors": (),
    "_dynamo": (),
    "_spec": ("_errors", "_dynamo", "_spec"),
    "_array_api": ("_errors", "_dynamo", "_spec", "_array_api"),
    "_array_api.ops": (),
    "_array_api.digits": ("_spec.plan", "_array_api.ops"),
    "_array_api.angles": ("_spec.plan", "_array_api.digits", "_array_api.ops"),
    "_array_api.pairs": ("_spec.plan", "_spec.shape_rule", "_array_api.ops"),
    "_registry": ("_errors", "_dynamo", "_array_api"),
    "_dispatch": ("_errors", "_array_api", "_registry"),
    "_apply": ("_errors", "_spec", "_array_api", "_dispatch"),
    "_rotation": ("_errors", "_dynamo", "_spec", "_array_api", "_dispatch"),
    "_rope": ("_errors", "_dynamo", "_spec", "_array_api", "_dispatch", "_rotation", "_config"),
    "_explain": ("_errors", "_spec", "_array_api", "_registry", "_dispatch", "_apply", "_rope"),
    "backend_tools": ("_errors", "_array_api", "_spec.plan", "_dispatch"),
    "_backends": (
        "_errors",
        "_spec",
        "_array_api",
        "backend_tools",
        "_backends._native",
        "_backends._gpu",
    ),  # and its own folder
    "_backends.torch": (  # backend_tools: for the shards of a DTensor
        *("_errors", "_spec", "_array_api", "_dynamo", "_rotation", "backend_tools"),
        *("_backends._native", "_backends._gpu"),
    ),
    "_backends.jax": (  # _rotation: jax.export asks for a name of each type
        *("_errors", "_spec", "_array_api", "_rotation", "backend_tools"),
        *("_backends._native", "_backends._gpu"),
    ),
    "positions": ("_errors", "_spec", "_array_api", "_registry", "positions"),
    "_config": ("_errors", "_spec", "_config"),  # the fields of a RoPE, without `RoPE`
    "config": ("_errors", "_config", "_rope"),
    "plots": ("_errors", "_spec", "_rope", "plots", "testing"),
    "hf": ("_errors", "_dynamo", "_spec", "_array_api.source", "_dispatch", "_rope", "hf"),
    "torch": ("_errors", "_spec.validation", "_array_api.position_input", "_rope", "_rotation", "torch"),
    "vllm": ("_errors", "_spec", "_rope", "_version", "hf", "vllm"),  # hf: models of transformers
}
# Modules that most programs never need: only the listed modules import them at the top.
# The package itself names rope_array.hf, rope_array.torch and rope_array.vllm for type checkers.
LATE_CORE = {"_config": {"_config", "config"}, "hf": {"hf", ""}, "torch": {"torch", ""}, "vllm": {"vllm", ""}}
OWN = {"jax": {"jax", "jaxlib"}, "ndonnx": {"ndonnx", "spox"}, "torch": {"torch", "triton"}}
COMPAT = {"_array_api.library"}  # the only importer of array-api-compat
# Modules whose functions import NumPy, for a NumPy argument or result, or the package of a file's format.
LATE_NUMPY = {"_array_api.library": {"numpy", "array_api_compat.numpy"}, "_array_api.out": {"numpy"}}
LATE_NUMPY["_config._gguf"] = {"gguf"}
COMMANDS = {"__main__", "_command", "_demo"}  # run by users, not imported
_PUBLIC = {"", "testing", "config", "plots", "_registry", "_demo", "_command"}  # for commands
HOST_TOOLS = {"_diagnose", "plots"}  # compute on the host, in NumPy; imported late
JUDGED = {"plots"}  # draws errors, so it needs the definition
# Folders for the users of one library, which they import.
OF_LIBRARY = {"hf": {"torch"}, "torch": {"torch"}, "vllm": {"torch", "vllm"}}
# The suite's definition and tolerances import no other part of the package.
JUDGE = {
    "testing._rules": set(),
    "testing._angles": {"testing._rules"},
    "testing._definition": {"testing._rules", "testing._angles"},
    "testing._index_words": set(),
    "testing._where": {"testing._index_words"},
    "testing._wrong": {"testing._definition", "testing._where"},
    "testing._values": {"testing._where", "testing._wrong"},
    "testing._verdict": set(),
    "testing._contract": {
        f"testing.{name}" for name in ("_definition", "_values", "_verdict", "_where", "_wrong")
    },
}
# Modules of the suite with late imports: of array libraries, and of the package.
LATE_LIBRARIES = {
    f"testing.{name}" for name in ("_compilers", "_modes", "_own", "_shrink", "_triton_interpreter")
} | {f"testing._libraries.{name}" for name in ("_base", "_jax", "_numpy", "_others", "_torch")}
LATE_PACKAGE = {"testing._own", "testing._which_rotation"}
OF_PYTEST = {"testing.plugin"}


class Source(NamedTuple):
    """The text of a module, and whether it is a package."""

    text: str
    is_package: bool


def sources() -> dict[str, Source]:
    """Every module by its name inside the package: "_apply", "testing._definition", "_backends.torch"."""
    found = {}
    for root, prefix in ((PACKAGE, ()), (BACKENDS, ("_backends",))):
        for path in sorted(root.rglob("*.py")):
            parts = prefix + path.relative_to(root).with_suffix("").parts
            if root == PACKAGE and parts[0] == "_backends":
                continue
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            found[name] = Source(path.read_text(encoding="utf-8"), is_package)
    return found


@functools.cache
def imports_of(name: str, source: Source, modules: frozenset[str]) -> list[tuple[str, bool]]:
    """Return the imports of a module by full name, and whether each is at module level."""
    tree, imports = ast.parse(source.text), []
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(function)
    }
    here = ["rope_array", *filter(None, name.split("."))]
    package = here if source.is_package else here[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *filter(None, [node.module])]
            full = (".".join([*base, alias.name]) for alias in node.names)
            found = [name if name in modules else ".".join(base) for name in full]
        elif isinstance(node, ast.Call) and _called(node) in ("import_module", "__import__"):
            found = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
        else:
            continue
        for full_name in found:
            imports.append((full_name, id(node) not in inside))
    return imports


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def import_graph(given: dict[str, Source]) -> dict[str, list[tuple[str, bool]]]:
    modules = frozenset(".".join(filter(None, ["rope_array", name])) for name in given)
    return {name: imports_of(name, source, modules) for name, source in given.items()}


def violations(given: dict[str, Source]) -> list[str]:
    """Every import that the rules forbid, and every cycle."""
    found = []
    inner: dict[str, set[str]] = {}
    for name, imports in import_graph(given).items():
        inner[name] = {
            full.partition(".")[2] for full, at_top in imports if full.partition(".")[0] == "rope_array"
        }
        for full, at_top in imports:
            if reason := forbidden(name, full, at_top):
                found.append(f"rope_array.{name} imports {full}: {reason}")
    return [*found, *cycles(inner)]


def forbidden(name: str, full: str, at_top: bool) -> str:
    """Return why an import is forbidden, or an empty string."""
    root, _, rest = full.partition(".")
    if root in STDLIB:
        return ""
    area = name.partition(".")[0]
    if area == "testing":
        return _forbidden_to_suite(name, root, rest, at_top)
    if root == "rope_array":
        return _forbidden_to_core(name, area, rest, at_top)
    if area == "_backends":
        return _forbidden_to_backend(name, root, rest)
    if area in COMMANDS:
        return "" if root == "numpy" or not at_top else "a command imports other libraries late"
    if area in HOST_TOOLS and root == "numpy":
        return ""
    if root in OF_LIBRARY.get(area, ()):
        return ""
    if full == "array_api_compat" and name in COMPAT:
        return ""
    if not at_top and full in LATE_NUMPY.get(name, ()):
        return ""
    return "the core knows no array library"


def _forbidden_to_suite(name: str, root: str, rest: str, at_top: bool) -> str:
    if root == "numpy" or (root == "pytest" and name in OF_PYTEST):
        return ""
    if root != "rope_array":
        late = not at_top and name in LATE_LIBRARIES
        return "" if late else "the suite imports NumPy, and others late, where they are named"
    if rest == "" and not at_top and name in LATE_PACKAGE:
        return ""
    if rest.partition(".")[0] != "testing":
        return "the judge shares nothing with the core"
    if name in JUDGE and rest not in JUDGE[name]:
        return f"it may import {sorted(JUDGE[name]) or 'nothing'} of the package"
    return ""


def _forbidden_to_core(name: str, area: str, rest: str, at_top: bool) -> str:
    target = rest.partition(".")[0]
    if area in COMMANDS:
        return "" if target in _PUBLIC else "a command uses what is public"
    if target in ("testing", "_demo", "_command") and not (target == "testing" and area in JUDGED):
        return "nothing in the core imports it"
    if target == "_backends" and area != "_backends":
        return "backends are loaded late, by name"
    if at_top and area not in LATE_CORE.get(target, {area}):
        return "it is imported late, when it is asked for"
    own = ".".join(name.split(".")[:2])
    if area == "_backends" and is_within(rest, own) and "." in name:
        return ""
    rule = next((MAY_IMPORT[key] for key in (name, own, area) if key in MAY_IMPORT), None)
    if rule is not None and not any(is_within(rest, allowed) for allowed in rule):
        return f"it may import {sorted(rule) or 'nothing'} of the package"
    return ""


def is_within(module: str, folder: str) -> bool:
    return module == folder or module.startswith(f"{folder}.")


def _forbidden_to_backend(name: str, root: str, rest: str) -> str:
    library = name.split(".")[1] if "." in name else ""
    if root == "array_api_compat":
        other = rest.partition(".")[0]
        return "" if other in ("", library, "numpy") else "another library's"
    allowed = {"numpy", *OWN.get(library, {library})}
    return "" if root in allowed else "a backend imports its own library and NumPy"


def cycles(graph: dict[str, set[str]]) -> list[str]:
    """Return import cycles. A package counts as its `__init__`; its submodules are no imports."""
    found: list[str] = []
    done: set[str] = set()

    def visit(name: str, trail: list[str]) -> None:
        if name in trail:
            found.append("cycle: " + " -> ".join([*trail[trail.index(name) :], name]))
        elif name not in done:
            for target in sorted(graph.get(name, ())):
                visit(target, [*trail, name])
            done.add(name)

    for name in sorted(graph):
        visit(name, [])
    return found


def test_import_rules() -> None:
    assert violations(sources()) == []


def test_the_rules_see_the_whole_package() -> None:
    """The rules would also pass on an empty package."""
    graph = import_graph(sources())
    assert {"", "_apply", "_spec.plan", "_array_api.angles", "_registry", "_dispatch"} <= graph.keys()
    assert {"testing", "testing._definition", "_backends", "_backends.torch", "_backends.jax"} <= graph.keys()
    assert ("rope_array._dispatch", True) in graph["_apply"]
    assert ("rope_array._spec.plan", True) in graph["_array_api.angles"]
    assert ("rope_array._array_api.rotate", True) in graph["_backends.torch"]
    assert ("rope_array._backends.torch._distributed", True) in graph["_backends.torch"]
    assert ("numpy", False) in graph["_array_api.library"]
    assert ("rope_array._config", False) in graph["_rope"]
    assert ("rope_array._config._reader", True) in graph["_config"]
    assert ("rope_array", False) in graph["testing._own"]
    assert ("rope_array.testing._judge", True) in graph["testing._checks._sizes"]


PLANTED = [
    ("_spec/spec.py", "import numpy", "no array library"),
    ("_spec/spec.py", "from numpy import asarray", "no array library"),
    ("_spec/plan.py", "import array_api_compat", "no array library"),
    ("_spec/scaling.py", "from rope_array._array_api.library import library", "may import"),
    ("_errors.py", "from ._spec import plan", "may import"),
    ("_array_api/angles.py", "from .library import library", "may import"),
    ("_array_api/angles.py", "import numpy", "no array library"),
    ("_array_api/pairs.py", "import rope_array._array_api.rotate", "may import"),
    ("_array_api/checks.py", "from rope_array import _registry", "may import"),
    ("_array_api/checks.py", "import array_api_compat", "no array library"),
    ("_apply.py", "import torch", "no array library"),
    ("_apply.py", "def f():\n    import torch", "no array library"),
    ("_apply.py", "from . import _registry", "may import"),
    ("_array_api/library.py", "import numpy", "no array library"),
    ("_array_api/library.py", "import array_api_compat.torch", "no array library"),
    ("_dispatch.py", "from rope_array.testing import cos_sin", "nothing in the core"),
    ("_dispatch.py", "def f():\n    from .testing._definition import cos_sin", "nothing in the core"),
    ("_dispatch.py", "from . import _demo", "nothing in the core"),
    ("_config/_rules.py", "import numpy", "no array library"),
    ("_config/_document.py", "def f():\n    import array_api_compat", "no array library"),
    ("_config/__init__.py", "def f():\n    from rope_array._rope import RoPE", "may import"),
    ("_config/_module.py", "from rope_array._config import _reader", "cycle: "),
    ("config.py", "def f():\n    from . import _registry", "may import"),
    ("_apply.py", "from . import _config", "imported late"),
    ("_rope.py", "def f():\n    from . import config", "cycle: "),
    ("_registry.py", "from ._backends import torch", "loaded late"),
    ("_registry.py", "import_module('rope_array._backends.torch')", "loaded late"),
    ("_registry.py", "from . import _dispatch", "may import"),
    ("_spec/plan.py", "def f():\n    from .spec import Spec", "cycle: "),
    ("_array_api/position_input.py", "from .checks import check_call", "cycle: "),
    ("testing/_definition.py", "from rope_array._spec.plan import Layout", "shares nothing"),
    ("testing/__init__.py", "from .. import apply", "shares nothing"),
    ("testing/__init__.py", "import mpmath", "late, where"),
    ("testing/_run.py", "def f():\n    import torch", "late, where"),
    ("testing/_run.py", "import pytest", "late, where"),
    ("testing/_libraries/_torch.py", "import torch", "late, where"),
    ("testing/_libraries/_torch.py", "def f():\n    import rope_array", "shares nothing"),
    ("testing/_own.py", "import rope_array", "shares nothing"),
    ("testing/_own.py", "def f():\n    from rope_array._array_api.rotate import apply", "shares nothing"),
    ("testing/_target.py", "def f():\n    import rope_array", "shares nothing"),
    ("testing/_definition.py", "from ._libraries import rounded", "may import"),
    ("testing/_contract.py", "from rope_array.testing import Target", "may import"),
    ("testing/_judge.py", "from . import _checks", "cycle: "),
    ("testing/_checks/_sizes.py", "from rope_array._spec.plan import Layout", "shares nothing"),
    ("_backends/torch/__init__.py", "from rope_array._apply import apply", "may import"),
    ("_backends/torch/__init__.py", "from rope_array import apply", "may import"),
    ("_backends/torch/__init__.py", "from ... import _registry", "may import"),
    ("_backends/dask/__init__.py", "from rope_array import _dispatch", "may import"),
    ("_backends/torch/__init__.py", "from ..jax import LIBRARY", "may import"),
    ("_backends/torch/_distributed.py", "from rope_array._backends.dask import LIBRARY", "may import"),
    ("_backends/torch/_distributed.py", "def f():\n    import jax", "its own library"),
    ("_backends/dask/__init__.py", "import torch", "its own library"),
    ("_backends/jax/__init__.py", "import array_api_compat.torch", "another library's"),
    ("_backends/__init__.py", "from . import torch", "may import"),
    ("plots/_ropes.py", "import matplotlib", "no array library"),
    ("plots/_ropes.py", "from rope_array._dispatch import rotate", "may import"),
    ("config.py", "def f():\n    from .plots import save", "may import"),
    ("hf/_patch.py", "import transformers", "no array library"),
    ("hf/_rotary.py", "def f():\n    import jax", "no array library"),
    ("hf/_attention.py", "from rope_array._array_api.rotate import rotate_by_tables", "may import"),
    ("hf/_patch.py", "from rope_array import RoPE", "may import"),
    ("_rope.py", "from . import hf", "imported late"),
    ("torch/_rotary.py", "import jax", "no array library"),
    ("torch/_rotary.py", "def f():\n    import transformers", "no array library"),
    ("torch/_learned.py", "from rope_array._dispatch import rotate", "may import"),
    ("torch/_learned.py", "from rope_array import RoPE", "may import"),
    ("torch/_learned.py", "import rope_array._backends.torch", "loaded late"),
    ("_rope.py", "from . import torch", "imported late"),
    ("_rope.py", "def f():\n    from . import torch", "may import"),
    ("_command/_plot.py", "from rope_array._spec import plan", "what is public"),
    ("_explain.py", "from . import _command", "nothing in the core"),
    ("_demo/_text.py", "import torch", "late"),
    ("_demo/_text.py", "from .._dispatch import rotate", "what is public"),
]


@pytest.mark.parametrize(("file", "line", "reason"), PLANTED, ids=[f"{f}: {x}" for f, x, _ in PLANTED])
def test_a_planted_violation_is_found(file: str, line: str, reason: str) -> None:
    name = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".").removesuffix("__init__")
    clean = sources()
    assert violations(clean) == []  # so that the planted line is the only violation
    text, is_package = clean[name]
    found = violations({**clean, name: Source(f"{text}\n{line}\n", is_package)})
    assert any(name in text and reason in text for text in found), found


# ---- broken and mocked frameworks ----

BROKEN = """
import sys, types
from unittest.mock import MagicMock

kind, *names = sys.argv[1:]
for name in names:
    # None: a test blocks the import. An empty module: half imported. A mock: a documentation build.
    sys.modules[name] = {"None": None, "mock": MagicMock(name)}.get(kind, types.ModuleType(name))

import numpy as np
import rope_array as ra
"""
USE = """
rope = ra.RoPE(4, pairing="half")
x = np.ones((2, 4), np.float32)
y = ra.apply(x, [0, 1], rope)
z = rope.rotation(np.arange(2), like=x).apply((x, x))
rope.matrix(3)
print(type(y) is type(z[0]) is np.ndarray and y.tobytes() == z[0].tobytes())
"""
MISUSE = """
for call in (lambda: ra.apply([1.0], 0), lambda: ra.apply(np.ones((2, 4)), None)):
    try:
        call()
    except ra.ArrayTypeError:
        print("refused")
"""
FRAMEWORKS = ["torch", "jax jax.core jax.numpy", "dask dask.array", "cupy", "ndonnx sparse"]
ALL = " ".join(FRAMEWORKS)
KINDS = ["None", "empty", "mock"]


@pytest.mark.parametrize(
    ("kind", "names"), [*((kind, ALL) for kind in KINDS), *(("empty", names) for names in FRAMEWORKS)]
)
def test_a_broken_framework_does_not_disturb_numpy(kind: str, names: str) -> None:
    assert child.run(BROKEN + USE, kind, *names.split()).strip() == "True"


@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_framework_changes_no_error(kind: str) -> None:
    printed = child.run(BROKEN + MISUSE, kind, *ALL.split())
    assert printed.split() == ["refused", "refused"]


# ---- public names ----

MODULES = [rope_array, rope_array.config, rope_array.convert, rope_array.positions, rope_array.testing]
# Attributes that the package imports on first access.
LATE = {
    "rope_array": {
        *("backend_tools", "backends", "config", "convert", "diagnose", "explain", "hf", "plots"),
        *("positions", "testing"),
    }
}


def public_objects(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield functions, classes and their own methods, with names; exceptions have another test."""
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.ismodule(value) or (inspect.isclass(value) and issubclass(value, Exception)):
            continue
        yield name, value
        if inspect.isclass(value):
            members = ((m, getattr(v, "__func__", v)) for m, v in vars(value).items())  # of class methods too
            own = [(m, v) for m, v in members if not m.startswith("_") and inspect.isfunction(v)]
            yield from ((f"{name}.{m}", v) for m, v in own)


OBJECTS = dict(item for module in MODULES for item in public_objects(module))


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_all_is_complete_and_sorted(module: Any) -> None:
    assert module.__all__ == sorted(module.__all__)
    assert len(set(module.__all__)) == len(module.__all__)
    public = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("rope_array")
    }
    assert public | LATE.get(module.__name__, set()) == set(module.__all__)


def test_names_that_users_have() -> None:
    """Removing a name breaks users' code; a new name is added to this list."""
    errors = ["ArrayTypeError", "BackendError", "PositionError", "RoPEError", "ShapeError", "SpecError"]
    errors += ["ConfigError", "PatchError"]
    rules = ["DynamicNTK", "Linear", "Llama3", "LongRoPE", "NTKAware", "Periods", "Proportional", "YaRN"]
    rules += ["Reversed"]
    modules = ["backend_tools", "config", "convert", "hf", "plots", "positions", "testing"]
    others = ["Axes", "RoPE", "Rotation", "apply", "backends", "diagnose", "explain"]
    others += ["Backend", "Explanation"]  # results of backends() and explain()
    assert sorted(rope_array.__all__) == sorted([*errors, *rules, *modules, *others])
    with pytest.raises(AttributeError, match=r"rope_array.*nonesuch"):
        _ = rope_array.nonesuch


def test_dir_lists_the_public_names() -> None:
    """Before and after a name is used: in a new interpreter."""
    child.run(
        """
        import rope_array
        names = {name for name in dir(rope_array) if not name.startswith("_")}
        assert names == set(rope_array.__all__), names ^ set(rope_array.__all__)
        for name in names:
            getattr(rope_array, name)
        assert {name for name in dir(rope_array) if not name.startswith("_")} == names
        assert "__version__" in dir(rope_array)
        """
    )


def section(text: str, title: str) -> str:
    """Return a section of a numpydoc docstring, or an empty string."""
    found = re.search(rf"^{title}\n-+\n(.*?)(?=^\S[^\n]*\n-+\n|\Z)", text, re.MULTILINE | re.DOTALL)
    return found.group(1) if found else ""


@pytest.mark.parametrize("name", OBJECTS)
def test_docstrings(name: str) -> None:
    check_docstring(OBJECTS[name])


def check_docstring(value: Any) -> None:
    text = inspect.getdoc(value) or ""
    assert text.splitlines()[0].endswith((".", ":")) or "." in text.partition("\n\n")[0]
    assert ">>> " in section(text, "Examples")
    if inspect.isfunction(value):
        assert section(text, "Yields" if inspect.isgeneratorfunction(value) else "Returns")
        named = section(text, "Parameters")
        for parameter in inspect.signature(value).parameters.values():
            if parameter.name in ("self", "cls"):
                continue
            stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
            wanted = stars + parameter.name
            assert re.search(rf"(^|, ){re.escape(wanted)}\b", named, re.MULTILINE), wanted


def test_attributes_of_classes_are_described() -> None:
    text = inspect.getdoc(rope_array.RoPE)
    names = [f for f in rope_array.RoPE.__dataclass_fields__ if not f.startswith("_")]
    for name in names:
        assert re.search(rf"^{name} : ", section(text, "Parameters"), re.MULTILINE), name
    for name in ("frequencies", "amplitude"):
        assert re.search(rf"^{name} : ", section(text, "Attributes"), re.MULTILINE), name
        assert inspect.getdoc(getattr(rope_array.RoPE, name))
    assert "cos, sin : " in section(inspect.getdoc(rope_array.Rotation), "Attributes")


@pytest.mark.parametrize("name", [n for n in rope_array.__all__ if n.endswith("Error")])
def test_exceptions_have_docstrings(name: str) -> None:
    value = getattr(rope_array, name)
    assert issubclass(value, rope_array.RoPEError)
    assert inspect.getdoc(value).endswith(".")
    assert value.__module__ == "rope_array"  # shown in tracebacks


NOT_CORE = {"_backends", *COMMANDS, *OF_LIBRARY}
CORE = [name for name in sources() if name.partition(".")[0] not in NOT_CORE]


@pytest.mark.parametrize("name", CORE)
def test_doctests(name: str) -> None:
    module = importlib.import_module(".".join(filter(None, ["rope_array", name])))
    failed, tried = doctest.testmod(module, raise_on_error=False)
    assert failed == 0
    own = [value for value in vars(module).values() if getattr(value, "__module__", "") == module.__name__]
    assert tried or not any(">>> " in (inspect.getdoc(value) or "") for value in own)


def test_doctests_are_run() -> None:
    tried = {
        name: doctest.testmod(importlib.import_module(f"rope_array.{name}"))[1]
        for name in ("_rope", "_rotation")
    }
    assert tried["_rope"] >= 10
    assert tried["_rotation"] >= 8


# ---- the folder for users of PyTorch ----


@pytest.mark.library("torch")
def test_the_names_of_the_torch_folder() -> None:
    module = rope_array.torch
    test_all_is_complete_and_sorted(module)
    for _, value in public_objects(module):
        check_docstring(value)
    failed, tried = doctest.testmod(module)
    assert failed == 0
    assert tried >= 20


def test_the_torch_folder_is_no_name_for_star_imports() -> None:
    """It would hide PyTorch's own name; nor does `dir` list it, as a loop over `dir` would import PyTorch."""
    child.run("from rope_array import *; assert 'torch' not in dir()")
    child.run("import rope_array; assert 'torch' not in dir(rope_array)")


def test_the_torch_folder_without_pytorch() -> None:
    script = """
        import sys
        sys.modules["torch"] = None  # a test blocks the import
        import rope_array
        try:
            rope_array.torch
        except ImportError as error:
            print(error)
    """
    assert "pip install 'rope-array[torch]'" in child.run(script)


# ---- threads ----

FIRST_CALLS = """
import sys
import numpy as np
from conftest import LIBS
from threads import in_threads

lib = LIBS[sys.argv[1]]
x = lib.asarray(np.random.default_rng(0).standard_normal((2, 3, 8)), "float32")
pos = lib.asarray(np.arange(3, dtype=np.int32))
lib.to_numpy(x)
sys.setswitchinterval(1e-6)


def first_call(i):
    import rope_array as ra  # threads race for the import too
    rope = ra.RoPE(8, pairing="half")
    y = ra.apply(x, pos, pairing="half")
    rotation = rope.rotation(pos, like=x)
    made = y, rope.apply((x, x), [0, 1, 2])[1], rotation.apply(x)
    return {lib.to_numpy(a).tobytes() for a in made}


for _ in range(int(sys.argv[2])):
    for name in [name for name in sys.modules if name.partition(".")[0] == "rope_array"]:
        del sys.modules[name]
    assert len(set.union(*in_threads(first_call))) == 1, "threads, or forms of the call, differ"
"""


def test_first_calls_of_eight_threads_agree(lib: Any) -> None:
    child.run(FIRST_CALLS, lib.label, {"jax": "2", "dask": "5", "torch": "5"}.get(lib.name, "15"))


def test_two_threads_that_register_a_type_get_one_library(lib: Any, monkeypatch: Any) -> None:
    """Both threads read the table of libraries before either writes, unless a lock prevents it."""
    x, barrier = lib.asarray(np.ones((2, 4))), threading.Barrier(2)

    class Table(dict):  # type: ignore[type-arg]
        """Return from values() after both threads have called it, or after a second."""

        def values(self) -> Any:
            read = list(super().values())
            with contextlib.suppress(threading.BrokenBarrierError):
                barrier.wait(timeout=1)
            return read

    monkeypatch.setattr(_library, "_libraries", Table())
    first, second = in_threads(lambda i: _library.library(x), 2)
    assert first is second is _library.library(x)


MANY_SPECS = """
import sys
import numpy as np
import rope_array as ra
from threads import in_threads

x = np.random.default_rng(0).standard_normal((2, 2))
bases = [float(base) for base in range(1, 400)]
want = {base: ra.RoPE(2, base=base, attention_factor=base).apply(x, [1, 2]).tobytes() for base in bases}
sys.setswitchinterval(1e-6)


def work(i):
    for base in bases[50 * i :] + bases[: 50 * i]:
        y = ra.apply(x, [1, 2], base=base, attention_factor=base)
        assert y.tobytes() == want[base], base


in_threads(work)
"""


LOCKED = """
import os, signal, threading
import numpy as np
import rope_array as ra
from rope_array import _dynamo

x, held, release = np.ones((3, 2)), threading.Event(), threading.Event()
with _dynamo.lock:
    ra.apply(x, [1, 2, 3], base=1.5)  # as a finalizer that runs while a memo changes


def hold():
    with _dynamo.lock:
        held.set()
        release.wait()


threading.Thread(target=hold).start()
held.wait()
if hasattr(os, "fork"):
    child = os.fork()
    if not child:
        signal.alarm(30)
        ra.apply(np.ones((3, 2)), [1, 2, 3], base=2.5)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
release.set()
"""


def test_calls_while_the_memos_are_locked() -> None:
    """A thread that holds the lock may rotate; a forked child does not wait for a thread of its parent."""
    child.run(LOCKED)


def test_one_liners_of_many_specs_in_eight_threads() -> None:
    """Use more specs than the memo holds: one thread evicts the plan that another is about to use."""
    child.run(MANY_SPECS)
