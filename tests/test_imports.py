"""Imports: libraries loaded, imports that each module may have, public names, and their documentation."""

import ast
import contextlib
import doctest
import functools
import graphlib
import importlib
import inspect
import re
import runpy
import sys
import threading
from pathlib import Path

import child
import docs_blocks
import numpy as np
import pytest
from threads import in_threads

import rope_array
import rope_array.testing
from rope_array import _registry
from rope_array._array_api import library as _library
from rope_array.testing._libraries import DEFAULT_CONFIGURATIONS

PACKAGE = Path(rope_array.__file__).parent
# Installed: a folder of the package. In a checkout: a folder next to the package, or a link to it.
BACKENDS = PACKAGE / "_backends" if (PACKAGE / "_backends").is_dir() else PACKAGE.parent / "backends"
# Packages, by the name in an import statement.
LIBRARIES = {lib.module.partition(".")[0] for lib in DEFAULT_CONFIGURATIONS} | {"jaxlib", "ml_dtypes"}

# ---- import rope_array ----


def test_late_modules_come_on_first_use():
    script = """
        import sys

        def new(statement):
            before = set(sys.modules)
            exec(statement, globals())
            return set(sys.modules) - before

        for use in sys.argv[1:]:
            for name in [name for name in sys.modules if name.partition(".")[0] == "rope_array"]:
                del sys.modules[name]
            print(*new("import rope_array as ra"), "|", *new(use))
    """
    names = (
        "_config _config._diffusers _config._gguf _config._rules _diagnose _spec.scaling config convert hf"
    )
    late = {f"rope_array.{name}" for name in [*names.split(), "positions", "torch"]}
    uses = {
        "ra.RoPE(4).frequencies": set(),
        "ra.Linear(2.0)": {"rope_array._spec.scaling"},
        "ra.RoPE.from_config({'model_type': 'llama'})": {"rope_array._config"},
        "ra.config": {"rope_array._config", "rope_array.config"},
        "ra.hf.patch": {"rope_array.hf"},
    }
    for line, wanted in zip(child.run(script, *uses).splitlines(), uses.values(), strict=True):
        first, after = (set(names.split()) for names in line.split("|"))
        assert not first & late
        assert after & late == wanted


def test_imports_a_config_and_a_first_call_read_their_own_files_alone(tmp_path):
    """By Python's audit events, they make no connection, start no program, write no file, load no library."""
    script = """
        import contextlib, importlib, os, sys, sysconfig
        refused = "ctypes.dlopen os.exec os.fork os.link os.mkdir os.posix_spawn os.remove os.rename "
        refused += "os.rmdir os.spawn os.symlink os.system os.truncate pickle. socket. subprocess."
        refused, config, events, before = tuple(refused.split()), sys.argv[1], [], set(sys.modules)

        def hook(event, args):
            if event == "open":
                path, mode, flags = args
                writes = {*(mode or "")} & {*"wax+"} or flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
                events.append(f"{'writes' if writes else 'reads'} {path}")
            elif event.startswith(refused) and args != (None,):  # ctypes loads the program itself
                events.append(f"{event} {args}")

        def read_variable(self, name, read=os._Environ.__getitem__):
            callers = [sys._getframe(depth).f_globals["__name__"] for depth in range(1, 5)]
            events.extend(f"environment {name}" for caller in callers if caller.startswith("rope_array"))
            return read(self, name)

        def check_new_packages(*names):
            new = {name.partition(".")[0] for name in sys.modules.keys() - before} - sys.stdlib_module_names
            assert new == {"rope_array", "array_api_compat", *names}, new

        sys.addaudithook(hook)
        os._Environ.__getitem__ = read_variable
        import rope_array
        rope_array.RoPE.from_config(config)
        check_new_packages()
        for name in {*rope_array._MODULES, "__main__"} - {"torch"}:
            importlib.import_module(f"rope_array.{name}")
        check_new_packages("numpy")
        import array_api_compat, numpy
        rope_array.apply(numpy.ones((2, 4)), range(2))
        folders = [m.__path__[0] for m in (rope_array, rope_array._backends, numpy, array_api_compat)]
        folders += [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
        expected = tuple(f"reads {folder}" for folder in folders)

        def others():
            # importlib.metadata reads entry_points.txt, also in archives on sys.path
            rest = {event for event in events if not event.startswith(expected)}
            return {e for e in rest if not (e.startswith("reads") and e.endswith((".txt", ".zip")))}

        assert others() - {"environment ROPE_ARRAY_KERNEL_LEVEL"} == {f"reads {config}"}, others()
        for planted in ("import socket; socket.socket()", "os.execv('', ['a'])", "open('/a/.txt', 'r+')"):
            events.clear()
            with contextlib.suppress(OSError):
                exec(planted)
            assert others(), planted
    """
    config = tmp_path / "config.json"
    config.write_text(
        '{"model_type": "llama", "head_dim": 8, "rope_theta": 1e4, "max_position_embeddings": 9}'
    )
    child.run(script, config, PYTHONDONTWRITEBYTECODE="1")


# A module of each library, and its function that makes an array of one of NumPy.
ARRAYS = {
    "numpy": ("numpy", "asarray"),
    "strict": ("array_api_strict", "asarray"),
    "dask": ("dask.array", "from_array"),
    "jax": ("jax.numpy", "asarray"),
    "torch": ("torch", "from_numpy"),
}


@pytest.mark.library(*ARRAYS)
def test_using_one_library_brings_in_no_other():
    """Of the libraries that come after it here."""
    script = """
        import importlib, sys
        import numpy as np

        for module, make in eval(sys.argv[1]):
            x = getattr(importlib.import_module(module), make)(np.ones((2, 4), np.float32))
            before = set(sys.modules)  # jax imports ml_dtypes
            import rope_array as ra
            rope = ra.RoPE(4)
            for y in (ra.apply(x, [0, 1]), rope.rotation(3, like=x).apply(x), rope.matrix(1, like=x)):
                np.asarray(y)
            new = set(sys.modules) - before
            libraries = {name for name in sys.argv[2].split() if name not in before}
            print(*libraries & new)
            print(*{name.split(".")[2] for name in new if name.startswith("rope_array._backends.")})
    """
    printed = child.run(script, repr([*ARRAYS.values()]), " ".join(LIBRARIES)).splitlines()
    libraries, backends = printed[::2], printed[1::2]
    assert libraries == [""] * len(ARRAYS)
    assert set(backends[0].split()) <= {"numpy", "_native"}
    assert backends[1:] == ["", "dask", "jax", "torch"]


# ---- who may import whom ----

# The imports of a module, by its name or its folder's; the longest name counts. ".x" is a module or
# folder of the package, "." the package itself, "=x" a module without its submodules; after "late", imports
# inside of functions only. The standard library is free. Only the package names all, for type checkers.
NATIVE_AND_GPU = "._backends._native ._backends._gpu"
OF_A_BACKEND = f"._errors ._spec ._array_api .backend_tools {NATIVE_AND_GPU} numpy"
FOLDERS = {record.module.split(".")[2]: record.types[0] for record in _registry.RECORDS}
NO_IMPORTS = "_errors _internals _version _backends testing._rules"
MAY_IMPORT = {
    "": "._apply ._attention ._diagnose ._errors ._examine ._explain ._fingerprint ._rope ._rotation ._spec "
    ".backend_tools .config .convert .hf .onnx .positions .sglang .torch .vllm",
    **dict.fromkeys(NO_IMPORTS.split(), ""),
    "_dynamo": "._internals",
    "_spec": "._errors ._dynamo ._spec",
    "_array_api": "._errors ._dynamo ._spec ._array_api",
    "_array_api.ops": "._spec.plan",
    "_array_api.digits": "._spec.plan ._array_api.ops",
    "_array_api.turns": "._spec.frequencies ._spec.plan ._array_api.ops",
    "_array_api.angles": "._spec.plan ._array_api.digits ._array_api.ops ._array_api.turns",
    "_array_api.pairs": "._spec.plan ._spec.shape_rule ._array_api.ops ._array_api.source",
    # NumPy late: for an argument or a result of NumPy.
    "_array_api.library": "._errors ._dynamo ._spec ._array_api =array_api_compat "
    "late =array_api_compat.numpy numpy",
    "_array_api.out": "._errors ._spec ._array_api late numpy",
    "_registry": "._errors ._dynamo ._array_api",
    "_dispatch": "._errors ._array_api ._registry",
    "_apply": "._errors ._dynamo ._spec ._array_api ._dispatch",
    "_rotation": "._errors ._dynamo ._spec ._array_api ._dispatch",
    "_attention": "._errors ._spec ._array_api ._dispatch ._rotation",
    "_tables": "._errors ._spec ._array_api ._dispatch ._rotation",
    "_rope": "._errors ._dynamo ._spec ._array_api ._dispatch ._rotation ._tables late ._config",
    "_explain": "._errors ._spec ._array_api ._registry ._dispatch ._apply ._rope",
    "backend_tools": "._errors ._array_api ._spec.plan ._dispatch",
    "positions": "._errors ._spec ._array_api ._registry .positions",
    "convert": "._errors ._spec ._array_api ._dispatch ._registry ._rope late ._state_dict",
    "_state_dict": "._errors ._config ._rope",
    "_config": "._errors ._spec ._config",  # the fields of a RoPE, without `RoPE`
    "config": "._errors ._config ._rope",
    # These compute in NumPy, on the host.
    "_diagnose": "._errors ._spec ._array_api ._rope ._diagnose numpy",
    "_examine": "._errors ._config ._diagnose ._rope .config numpy",
    "_fingerprint": "._errors ._spec ._array_api ._dispatch ._rope ._diagnose ._fingerprint numpy",
    "plots": "._errors ._spec ._rope .plots .testing numpy",  # the definition, as errors are drawn
    # Backends import their own library, and each other never.
    **dict.fromkeys(["_backends._native", "_backends._gpu"], OF_A_BACKEND),
    **{
        f"_backends.{folder}": f"{OF_A_BACKEND} ._backends.{folder} {re.match('[a-z_]+', type_name)[0]}"
        for folder, type_name in FOLDERS.items()
    },
    # _rotation: exports of JAX and PyTorch ask for a name of each type.
    "_backends.torch": f"{OF_A_BACKEND} ._backends.torch ._dynamo ._internals ._rotation torch triton "
    "=array_api_compat.torch",
    "_backends.jax": f"{OF_A_BACKEND} ._backends.jax ._internals ._rotation jax jaxlib",
    "_backends.dask": f"{OF_A_BACKEND} ._backends.dask =array_api_compat.dask.array dask",
    "_backends.ndonnx": f"{OF_A_BACKEND} ndonnx spox",
    # Folders for the users of one library.
    "hf": "._errors ._examine ._fingerprint ._dynamo ._internals ._spec ._array_api.source "
    "._config._model_defaults .config ._dispatch ._rope .hf .torch torch",
    "onnx": "._errors ._spec ._rope numpy late onnx",
    "torch": "._attention ._dynamo ._errors ._spec ._array_api ._backends.torch ._rope "
    "._rotation .torch torch",
    "_engines": "._errors ._spec ._rope ._engines torch",
    "sglang": "._errors ._engines ._rope ._version .sglang torch sglang",
    "vllm": "._errors ._engines ._examine ._fingerprint ._rope ._version .hf .vllm torch vllm late numpy",
    # Commands use public modules, and import other libraries late.
    "__main__": "._command late .",
    "_command": ". ._command ._demo ._errors ._registry ._spec.scaling .config .plots .testing late "
    "._fingerprint numpy",
    "_demo": ". ._command._output ._demo .testing numpy late dask",
    # The suite shares nothing with the core.
    "testing": ".testing numpy",
    "testing._command": ".testing numpy ._command._output",
    "testing._report_text": ".testing numpy ._command._output",
    "testing._report": ".testing numpy ._version",
    "testing.plugin": ".testing numpy ._command._check pytest",
    **dict.fromkeys(
        ["testing._library_target", "testing._find_rotation"],
        ".testing ._diagnose._mistakes numpy late . ._spec.scaling",
    ),
    "testing._compilers": ".testing numpy late jax torch",
    "testing._modes": ".testing numpy late torch",
    "testing._triton_interpreter": ".testing numpy late triton",
    "testing._libraries": ".testing numpy late dask jax ml_dtypes onnxruntime torch",
    # Its definition and its tolerances import no other part of it.
    "testing._angles": ".testing._rules numpy",
    "testing._definition": ".testing._rules .testing._angles numpy",
    "testing._where": "numpy",
    "testing._wrong_result": ".testing._definition .testing._where numpy",
    # Only to explain wrong results, which the definition alone finds.
    "testing._explanation": ".testing._where .testing._wrong_result ._diagnose._mistakes numpy",
    "testing._failure": ".testing._explanation .testing._where .testing._wrong_result numpy",
    "testing._contract": ".testing._definition .testing._failure .testing._wrong_result numpy",
}


def sources():
    """Return every module's text and package, by its name in the package: "", "_backends.torch"."""
    texts = {}
    for root, prefix in ((PACKAGE, ()), (BACKENDS, ("_backends",))):
        for path in sorted(root.rglob("*.py")):
            names = (*prefix, *path.relative_to(root).with_suffix("").parts)
            if root == BACKENDS or names[0] != "_backends":
                name = ".".join(names[:-1] if names[-1] == "__init__" else names)
                texts[name] = path.read_text(encoding="utf-8"), ("rope_array", *names[:-1])
    return texts


def imports_of(text, package, modules):
    """Return the imports of a module by full name, and whether each is inside a function."""

    def visit(node, late):
        late = late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(node, ast.Import):
            yield from ((alias.name, late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*base, *filter(None, [node.module])])
            names = (f"{base}.{alias.name}" for alias in node.names)
            yield from ((name if name in modules else base, late) for name in names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            yield from ((name, late) for name in map(literal, node.args) if name)
        for inner in ast.iter_child_nodes(node):
            yield from visit(inner, late)

    def literal(node):
        """Return a text, which may begin with {__package__}; "" if other values are in it."""
        if not isinstance(node, ast.JoinedStr):
            return node.value if isinstance(node, ast.Constant) else ""
        known = {"{__package__}": ".".join(package)}
        texts = [ast.unparse(ast.JoinedStr([value]))[2:-1] for value in node.values]
        texts = [known.get(text, text) for text in texts]
        return "" if "{" in "".join(texts) else "".join(texts)

    return set(visit(ast.parse(text), False))


def may_import(name, full, late):
    areas = [area for area in MAY_IMPORT if is_within(name, area) and (area or not name)]
    if not areas:
        return False
    always, _, inside = MAY_IMPORT[max(areas, key=len)].partition("late")
    for allowed in (always + late * inside).split():
        target = f"rope_array{allowed}" if allowed.startswith(".") else allowed.removeprefix("=")
        exactly = allowed == "." or allowed.startswith("=")
        if full == target.removesuffix(".") or (not exactly and is_within(full, target)):
            return True
    return False


def is_within(name, folder):
    return name == folder or name.startswith(f"{folder}.")


SOURCES = sources()
NAMES = {f"rope_array.{name}" for name in SOURCES}
GRAPH = {name: imports_of(*source, NAMES) for name, source in SOURCES.items()}


def test_import_rules():
    assert {"", "_apply", "testing._definition", "_backends.torch"} <= GRAPH.keys()
    assert ("numpy", True) in GRAPH["_array_api.library"]
    edges = [(name, *edge) for name in GRAPH for edge in GRAPH[name]]
    third_party = [edge for edge in edges if edge[1].partition(".")[0] not in sys.stdlib_module_names]
    assert [edge for edge in third_party if not may_import(*edge)] == []


def test_no_module_imports_itself_by_way_of_others():
    """A package counts as its `__init__`; its submodules are no imports."""
    full_names = {f"rope_array.{name}".rstrip("."): GRAPH[name] for name in GRAPH}
    graph = {name: [full for full, _ in imports] for name, imports in full_names.items()}
    # A target that requires a check by name asks for the names of all checks, which judge targets.
    graph["rope_array.testing._target"].remove("rope_array.testing._checks")
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError


# ---- broken, mocked and older frameworks ----


@pytest.mark.parametrize(("version", "marked"), [("2.11.0", 1), ("2.12.0", 0)])
def test_dynamo_knows_plans_before_it_sees_one(version, marked):
    """Older versions of PyTorch have to be told, once, and not while another thread imports PyTorch."""
    child.run(
        f"""
        import sys, types
        torch = sys.modules["torch"] = types.SimpleNamespace(__version__={version!r})
        import rope_array as ra
        torch.utils, told = types.SimpleNamespace(), []
        ra.RoPE(4)
        torch.utils._pytree = types.SimpleNamespace(register_constant=told.append)
        assert told == []
        plans = [type(ra.RoPE(size)._plan) for size in (6, 8)]
        assert told == plans[:{marked}], told
        """
    )


def test_broken_frameworks_do_not_disturb_numpy():
    """None: a test blocks the import. An empty module: half imported. A mock: a documentation build."""
    child.run(
        """
        import sys, types
        from unittest.mock import MagicMock
        import numpy as np
        import pytest

        frameworks = "torch jax jax.core jax.numpy dask dask.array cupy ndonnx sparse".split()
        for make in (lambda name: None, types.ModuleType, MagicMock):
            for name in [name for name in sys.modules if name.partition(".")[0] == "rope_array"]:
                del sys.modules[name]
            sys.modules.update({name: make(name) for name in frameworks})
            import rope_array as ra

            rope = ra.RoPE(4, pairing="half")
            x = np.ones((2, 4), np.float32)
            y = ra.apply(x, [0, 1], rope)
            z = rope.rotation(np.arange(2), like=x).apply((x, x))
            rope.matrix(3)
            assert type(y) is type(z[0]) is np.ndarray and y.tobytes() == z[0].tobytes(), make
            for call in (lambda: ra.apply([1.0], 0), lambda: ra.apply(np.ones((2, 4)), None)):
                with pytest.raises(ra.ArrayTypeError):
                    call()
            if sys.modules["torch"] is None:
                with pytest.raises(ImportError, match="python -m pip install torch"):
                    ra.torch
        """
    )


# ---- public names ----


def public_objects(module):
    """Yield functions, classes and their own methods, with names; exceptions have another test."""
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.ismodule(value) or (inspect.isclass(value) and issubclass(value, Exception)):
            continue
        yield name, value
        if (
            inspect.isclass(value) and value is not rope_array.testing.Target
        ):  # its methods are the suite's own
            members = ((m, getattr(v, "__func__", v)) for m, v in vars(value).items())  # of class methods too
            functions = [(m, v) for m, v in members if not m.startswith("_") and inspect.isfunction(v)]
            yield from ((f"{name}.{m}", v) for m, v in functions)


PUBLIC_NAMES = runpy.run_path(str(docs_blocks.DOCS / "_public_names.py"))


def case(name):
    """Return a name; names of rope_array.torch need PyTorch."""
    return pytest.param(name, marks=[pytest.mark.library("torch")] * name.startswith("rope_array.torch"))


@pytest.mark.parametrize("section", [*map(case, PUBLIC_NAMES["SECTIONS"])])
def test_public_names_are_those_of_the_list(section):
    names, text = PUBLIC_NAMES["text_of"](section).splitlines(), PUBLIC_NAMES["FILE"].read_text("utf-8")
    assert f"\n{text}".count("\n# ") == len(PUBLIC_NAMES["SECTIONS"])
    listed = text.partition(f"{names[0]}\n")[2].partition("\n\n")[0]
    gone, new = {*listed.splitlines()}.difference(names), {*names[1:]}.difference(listed.splitlines())
    new = {name for name in new if not name.startswith("check ")}  # a release lists them: release/README.md
    assert not gone | new, f"gone: {gone}\nnew: {new}\n{PUBLIC_NAMES['__doc__']}"


def test_a_star_import_hides_no_library():
    child.run(
        """
        import rope_array
        from rope_array import *
        assert {*rope_array.__all__} <= {*dir()}
        assert not {"onnx", "sglang", "torch", "vllm"} & {*dir()}
        """
    )


def test_dir_has_the_modules_that_can_be_imported():
    """help() gets each name of `dir`: an ImportError there would end it."""
    child.run(
        """
        import inspect, sys, types
        import rope_array
        names = {*rope_array.__all__, "__version__", "onnx", "sglang", "vllm"}
        sys.modules["torch"] = None  # missing
        assert {name for name, _ in inspect.getmembers(rope_array)} == names
        sys.modules["torch"] = types.ModuleType("torch")
        assert {*dir(rope_array)} == {*names, "torch"}
        assert not hasattr(rope_array, "nonesuch")
        """
    )


def section(text, title):
    """Return a section of a numpydoc docstring, or an empty string."""
    match = re.search(rf"^{title}\n-+\n(.*?)(?=^\S[^\n]*\n-+\n|\Z)", text, re.MULTILINE | re.DOTALL)
    return match.group(1) if match else ""


WITH_EXAMPLES = "", ".config", ".convert", ".positions", ".testing", ".torch"


@pytest.mark.parametrize("name", [case(f"rope_array{name}") for name in WITH_EXAMPLES])
def test_names_and_docstrings(name):
    module = importlib.import_module(name)
    names = {n for n, v in vars(module).items() if getattr(v, "__module__", "").startswith("rope_array")}
    assert {name for name in names if not name.startswith("_")} <= set(module.__all__)
    for name, value in public_objects(module):
        text = inspect.getdoc(value) or ""
        assert text.splitlines()[0].endswith((".", ":")) or "." in text.partition("\n\n")[0], name
        assert ">>> " in section(text, "Examples"), name
        if inspect.isfunction(value):
            assert section(text, "Yields" if inspect.isgeneratorfunction(value) else "Returns"), name
        described = section(text, "Parameters") + section(text, "Attributes")
        for parameter in inspect.signature(value).parameters.values():
            stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
            wanted = re.escape(stars + parameter.name)
            is_described = re.search(rf"(?m)(^|, ){wanted}\b", described)
            assert parameter.name in ("self", "cls") or is_described, (name, wanted)


NOT_CORE = {"_backends", "__main__", "_command", "_demo", "hf", "sglang", "vllm"}


@pytest.mark.parametrize("name", [case(n) for n in sorted(NAMES) if n.split(".")[1] not in NOT_CORE])
def test_doctests(name):
    module = importlib.import_module(name.rstrip("."))
    failed, tried = doctest.testmod(module, raise_on_error=False)
    assert failed == 0
    defined = [v for v in vars(module).values() if getattr(v, "__module__", "") == module.__name__]
    assert tried or not any(">>> " in (inspect.getdoc(value) or "") for value in defined)


# ---- threads ----


def test_two_threads_that_register_a_type_get_one_library(lib, monkeypatch):
    """Both threads read the table of libraries before either writes, unless a lock prevents it."""
    x, barrier = lib.asarray(np.ones((2, 4))), threading.Barrier(2)

    class Table(dict):
        """Return from values() after both threads have called it, or after a second."""

        def values(self):
            read = list(super().values())
            with contextlib.suppress(threading.BrokenBarrierError):
                barrier.wait(timeout=1)
            return read

    monkeypatch.setattr(_library, "_libraries", Table())
    first, second = in_threads(lambda i: _library.library(x), 2)
    assert first is second is _library.library(x)


def test_calls_while_the_memos_are_locked():
    """A thread that holds the lock may rotate; a forked child does not wait for a thread of its parent."""
    child.run(
        """
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
    )


def test_one_liners_of_many_specs_in_eight_threads(request):
    """Use more specs than the memo holds: one thread evicts the plan that another is about to use."""
    x = np.random.default_rng(0).standard_normal((2, 2))
    bases = [float(base) for base in range(1, 400)]
    expected = {b: rope_array.RoPE(2, base=b, attention_factor=b).apply(x, [1, 2]).tobytes() for b in bases}

    def work(i):
        for base in bases[50 * i :] + bases[: 50 * i]:
            y = rope_array.apply(x, [1, 2], base=base, attention_factor=base)
            assert y.tobytes() == expected[base], base

    request.addfinalizer(functools.partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-6)
    in_threads(work)
