"""Backends: the list, the choice and its reasons, by name, and backends of other packages."""

import functools
import importlib.metadata
import json
import pickle
import shutil
import sys
import textwrap
from pathlib import Path
from unittest import mock

import child
import fake_package
import numpy as np
import pytest
from compare import KERNEL, normal, same
from conftest import NIGHTLY
from threads import in_threads

import rope_array as ra
from rope_array import ArrayTypeError, BackendError, ShapeError, SpecError, _registry
from rope_array.__main__ import main
from rope_array._backends import _native
from rope_array._backends._native import checkout
from rope_array.testing._libraries import DEFAULT_CONFIGURATIONS

NUMPY, TORCH = pytest.mark.library("numpy"), pytest.mark.library("torch")
BUILTIN = [*(record.name for record in _registry.RECORDS), "array-api"]
BACKENDS = {
    "numpy": ["native", "array-api"],
    "torch": ["native", "torch"],
    "jax": ["jax", "array-api"],
    "dask": ["dask", "array-api"],
    "array_api_strict": ["array-api"],
}
ROPE = ra.RoPE(16, pairing="half", rotary_dim=8)


def served(lib):
    """The backends that serve a library here, in order."""
    return [name for name in BACKENDS[lib.name] if name != "native" or _native.kernel is not None]


# ---- the list ----


def test_backends_are_listed_in_the_order_of_dispatch(lib):
    assert lib.native  # imports it
    listed = ra.backends()
    assert [backend.name for backend in listed] == BUILTIN
    usable = {backend.name for backend in listed if backend.usable}
    assert listed[-1].name in usable
    assert usable >= set(served(lib))
    assert (_native.kernel is None) == ("native" not in usable)
    packages = {lib.module.partition(".")[0] for lib in DEFAULT_CONFIGURATIONS}
    assert {backend.serves.partition(":")[0].partition(".")[0] for backend in listed[:-1]} < packages
    with pytest.raises(AttributeError):
        listed[0].usable = True


def test_without_the_kernel_errors_name_the_reason_and_the_list_imports_no_library():
    script = """
        import sys
        import rope_array as ra
        libraries = {*sys.argv[1:]}
        listed = ra.backends()
        assert not libraries & set(sys.modules), libraries & set(sys.modules)
        print(*(f"{one.name}={one.usable}" for one in listed))
        assert all("not imported" in one.description for one in listed if one.usable is None)
        import numpy as np
        listed = ra.backends()
        print(*(f"{one.name}={one.usable}" for one in listed))
        assert not (libraries - {"numpy"}) & set(sys.modules)
        x = np.ones((3, 16), dtype="float32")
        assert "ROPE_ARRAY_KERNEL_LEVEL" in listed[0].description
        assert "switched off" in ra.explain(x, 3).declined["native"]
        try:
            ra.apply(x, 3, backend="native")
        except ra.BackendError as error:
            print(error)
    """
    libraries = {lib.module.partition(".")[0] for lib in DEFAULT_CONFIGURATIONS} | {"jaxlib", "ml_dtypes"}
    before, after, error = child.run(script, *libraries, ROPE_ARRAY_KERNEL_LEVEL="none").splitlines()
    assert before.split() == [f"{name}={None if name != 'array-api' else True}" for name in BUILTIN]
    assert after.split() == ["native=False", *before.split()[1:]]
    assert "switched off" in error


@KERNEL
@NUMPY
def test_the_kernel_describes_its_instruction_set():
    native = ra.backends()[0]
    assert native.usable
    assert _native.kernel.level_name() in native.description
    assert native.description in ra.explain(np.ones((3, 16)), 3).notes


@KERNEL
@NUMPY
def test_a_kernel_older_than_its_sources_says_so(tmp_path, monkeypatch, capsys):
    """The record of PEP 610 names the checkout: these tests' own, then a copy in which a comment is new."""
    root, copy = Path(__file__).parents[1], tmp_path / "a copy"
    shutil.copytree(root / "backends/_native", copy / "backends/_native")
    shutil.copy(root / "CMakeLists.txt", copy)
    origin = {"url": copy.as_uri(), "dir_info": {}}
    record = mock.Mock(read_text=lambda name: json.dumps(origin))
    monkeypatch.setattr(checkout, "distribution", lambda name: record)
    assert checkout.hash_of_sources(root) == checkout.hash_of_sources(copy) == _native.kernel.SOURCES
    (copy / "backends/_native/loops/.stream.hpp.swp").write_text("an editor's")
    assert not ra.backends()[0].outdated
    (copy / "backends/_native/loops/stream.hpp").write_text("// changed\n")
    text = "the C++ kernel was compiled from other sources than"
    assert (
        ra.backends()[0].outdated == f'{text} {copy} has: `python -m pip install -v "{copy}"` compiles these'
    )
    origin["dir_info"]["editable"] = True
    assert f'-e "{copy}"` compiles these' in ra.backends()[0].outdated
    assert main(["check", "numpy", "--in-process", "--case", "base=500.0"]) == 0
    assert text in " ".join(capsys.readouterr().out.split())
    origin = {"url": "file:///w.whl", "archive_info": {}}
    assert not ra.backends()[0].outdated


# ---- the choice ----


def test_each_backend_serves_by_name_and_the_first_by_default(lib):
    x, pos = normal(lib, 2, 5, 16), lib.asarray(np.arange(5), "int32")
    with lib.running():
        expected, names = ROPE.apply(x, pos), served(lib)
        assert same(expected, ROPE.apply(x, pos, backend=names[0]))
        for arguments in ((x, pos, ROPE), (x, 3), (x, [0, 1, 2, 3, 0.5], ROPE), ((x, x), 3)):
            explanation = ra.explain(*arguments)
            assert explanation.backend == names[0]
            assert explanation.declined.keys() - {"triton"} == {*BACKENDS[lib.name]} - {*names, "array-api"}
        for name in [*names, "array-api"]:
            forced = ra.explain(x, pos, ROPE, backend=name)
            assert forced.backend == (name if name in names else names[-1])
            before = names[: names.index(forced.backend)]
            assert all(forced.declined[b] == f"backend={name!r} was requested" for b in before)
            for y in (
                ROPE.apply(x, pos, backend=name),
                ra.apply((x, x), pos, ROPE, backend=name)[1],
                ROPE.rotation(pos, like=x, backend=name).apply(x, backend=name),
            ):
                assert lib.owns(y)
                np.testing.assert_allclose(lib.to_numpy(y), lib.to_numpy(expected), rtol=0, atol=1e-6)


def test_explain_rotates_nothing(lib, monkeypatch):
    def never(*args, **options):
        raise AssertionError("computed")

    x = normal(lib, 2, 5, 16)
    kernel = () if _native.kernel is None else (_native.kernel,)
    for owner in (*_registry.backends_of(type(x)).in_order, *kernel):
        monkeypatch.setattr(owner, "rotate", never)
    with lib.running():
        for name in served(lib):
            assert ra.explain(x, range(5), ROPE, backend=name).backend == name
            with pytest.raises(AssertionError, match="computed"):
                ROPE.apply(x, range(5), backend=name)


def test_notes_name_dtypes_and_angles(lib):
    x = normal(lib, 2, 5, 16)
    with lib.running():
        assert "rotated: float32 in float32" in ra.explain(x, 3).notes
        assert "angles: exact, in fixed point" in ra.explain(x, range(5)).notes
        pos = lib.asarray(np.arange(5), "float32")
        for floats in (pos, 2.5, [0.5, 1, 2, 3, 4], np.arange(5.0) if lib.name in ("jax", "dask") else 0.5):
            assert "nearest integer" in ra.explain(x, floats).notes[-1]
        assert "here they reach 2.15e+09: subtract a start" in ra.explain(x, -(2.0**31)).notes[-1]
        assert "here within 0.8 radians" in ra.explain(x, -(2**62)).notes[-1]
        assert "Hugging Face" in ra.explain(x, 3, angles="float32").notes[-1]


ALONG_2 = "along axis 2 of x (seq_axis=-2), of size 7"
FOR_EACH = "; other positions for each index of axis"
NOT_0, NOT_01 = (f", not along axis {axes}, of the same size" for axes in ("0", "0 or 1"))
NOTES = {
    "seq_axis": ([(2, 7, 4, 8)], range(7), 1, "along axis 1 of x (seq_axis=-3), of size 7"),
    "equal sizes": ([(2, 7, 7, 8)], range(7), -2, f"{ALONG_2}, not along axis 1, of the same size"),
    "each sequence": ([(7, 3, 7, 8)], np.ones((7, 7), int), -2, f"{ALONG_2}{NOT_0}{FOR_EACH} 0"),
    "all sequences": ([(7, 3, 7, 8)], np.ones((1, 7), int), -2, f"{ALONG_2}{NOT_0}"),
    "each head": ([(7, 7, 7, 8)], np.ones((1, 7, 7), int), -2, f"{ALONG_2}{NOT_01}{FOR_EACH} 1"),
    "each of both": ([(2, 4, 7, 8)], np.ones((2, 4, 7), int), -2, f"{ALONG_2}{FOR_EACH} 0 and 1"),
    "number": ([(2, 4, 7, 8)], 0, -2, f"{ALONG_2}, all 7 at one position"),
    "one for each head": (
        [(2, 7, 4, 8)], [[[3], [4], [5], [6]], [[7], [8], [9], [10]]], -3,
        "along axis 1 of x (seq_axis=-3), of size 7, all 7 at one position for each index of axis 0 and 2",
    ),
    "vector": ([(8,)], 0, -2, "one, as x is a single vector"),
    "different lengths": (
        [(2, 4, 1, 8), (2, 4, 7, 8)], [[3], [4]], -2,
        f"along axis 2 of x (seq_axis=-2), of size 1{FOR_EACH} 0; "
        f"and {ALONG_2}, all 7 at one position for each index of axis 0",
    ),
}  # fmt: skip


@NUMPY
@pytest.mark.parametrize("name", NOTES)
def test_notes_name_the_axis_of_positions(lib, name):
    shapes, pos, seq_axis, note = NOTES[name]
    xs = tuple(normal(lib, *shape) for shape in shapes)
    assert f"positions: {note}" in ra.explain(xs, pos, seq_axis=seq_axis).notes


@NUMPY
def test_an_explanation_prints_as_lines():
    x = np.ones((3, 16)).astype(">f8")
    explanation = ra.explain((x, x.astype("float16"), x), 3)
    assert "rotated: float64 in float64, float16 in float32" in explanation.notes  # each once
    reasons = [f"declined: {name}: {reason}" for name, reason in explanation.declined.items()]
    assert len(reasons) == 1
    notes = [f"  {note}" for note in explanation.notes]
    assert str(explanation).splitlines() == ["backend: array-api", *notes, *reasons]
    assert repr(explanation) == str(explanation)


class Kept(np.ndarray):
    pass


NUMPY_DECLINES = {
    "byte order": (np.ones((5, 16)).astype(np.dtype("f8").newbyteorder()), "other byte order"),
    "subclass": ((np.ones((5, 16)), np.ones((5, 16)).view(Kept)), "Kept is a subclass"),
}


@NUMPY
@pytest.mark.parametrize("name", NUMPY_DECLINES)
def test_decline_reasons_of_numpy(name):
    x, reason = NUMPY_DECLINES[name]
    explanation = ra.explain(x, 3)
    assert explanation.backend == "array-api"
    assert list(explanation.declined) == ["native"]
    assert reason in explanation.declined["native"]
    like = x[-1] if isinstance(x, tuple) else x
    for call in (
        lambda: ra.apply(x, 3, backend="native"),
        lambda: ra.RoPE(16).rotation(3, like=like, backend="native"),
        lambda: ra.RoPE(16).rotation(3, like=like).apply(x, backend="native"),
    ):
        assert reason in refusal(call)


@KERNEL
@TORCH
def test_decline_reasons_of_pytorch():
    """test_torch.py has the reasons for modes, transforms and subclasses."""
    import torch

    x = torch.ones(5, 16)
    with torch.inference_mode():
        pos = torch.arange(5)
    recorded = ra.explain(x.requires_grad_(), pos)
    assert recorded.backend == "torch"
    assert recorded.declined == {
        "native": "positions or tables of inference mode cannot be kept for a backward",
        "triton": "a tensor is on cpu; the kernel runs on GPUs",
    }
    with torch.no_grad():
        assert ra.explain(x, pos).backend == "native"
    assert "on meta" in ra.explain(torch.ones(5, 16, device="meta"), 3).declined["native"]


REFUSED = {
    "an empty tuple": (lambda f, x, lib: f((), 3), ArrayTypeError),
    "integers": (lambda f, x, lib: f(lib.asarray(np.ones((5, 16)), "int32"), 3), ArrayTypeError),
    "a width in a tuple": (lambda f, x, lib: f((x, normal(lib, 5, 8)), 3, ROPE), ShapeError),
    "positions too long": (lambda f, x, lib: f(x, range(4)), ShapeError),
    "an axis": (lambda f, x, lib: f(x, range(5), seq_axis=5), ShapeError),
    "rope and fields": (lambda f, x, lib: f(x, 3, ROPE, base=5.0), SpecError),
    "an unknown backend": (lambda f, x, lib: f(x, 3, backend="fast"), BackendError),
}


@pytest.mark.parametrize("name", REFUSED)
def test_explain_refuses_what_apply_refuses(lib, name):
    call, error = REFUSED[name]
    with lib.running():
        x = normal(lib, 5, 16)
        explained, applied = (refusal(lambda f=f: call(f, x, lib), error) for f in (ra.explain, ra.apply))
    assert explained == applied


@NUMPY
def test_explain_does_not_look_at_values():
    assert ra.explain(np.ones((2, 16)), [0.0, float("nan")]).backend


def test_names_that_do_not_serve(lib):
    x = normal(lib, 5, 16)
    names = {name for names in BACKENDS.values() for name in names} - {*BACKENDS[lib.name], "array-api"}
    refusals = {name: f"'{name}' does not serve .*{BACKENDS[lib.name][0]}" for name in sorted(names)}
    # Each name is listed once, though two libraries have a backend "native".
    refusals |= dict.fromkeys(["", "NumPy", 5, ("numpy",)], "None or one of (?!.*'native'.*'native')")
    with lib.running():
        rotation = ROPE.rotation(range(5), like=x)
        for name, text in refusals.items():
            for call in (
                lambda name: ROPE.apply(x, 3, backend=name),
                lambda name: ROPE.rotation(3, like=x, backend=name),
                lambda name: rotation.apply(x, backend=name),
                lambda name: ra.explain(x, 3, backend=name),
            ):
                with pytest.raises(BackendError, match=text):
                    call(name)


# ---- backends of other packages ----

# A backend that calls the array-api backend's functions and counts the calls.
LOOPBACK = """
    from rope_array._array_api import tables as _tables
    from rope_array._registry import library_of

    RECORD = ("mine", {types!r}, "mine")
    name = "mine"
    calls = {{"rotate": 0, "make_tables": 0}}


    def rotate(call):
        calls["rotate"] += 1
        return _tables.rotate_by_array_api(call)


    def make_tables(source, like):
        calls["make_tables"] += 1
        return _tables.make_tables(source, like, library_of(like))
"""


def loopback(lines="", types=("numpy:ndarray",)):
    return textwrap.dedent(LOOPBACK).format(types=types) + textwrap.dedent(lines)


X = np.random.default_rng(0).standard_normal((2, 5, 16)).astype("float32")
HALF = ra.RoPE(16, pairing="half")
WANT = HALF.apply(X, 3, backend="array-api")


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Return a function that installs a package with a backend, for a registry that knows none yet."""
    fake_package.forget_records(monkeypatch)
    monkeypatch.syspath_prepend(tmp_path)

    def install(name, module, point=None):
        fake_package.install(tmp_path, name, module and textwrap.dedent(module), point)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return tmp_path

    yield install
    for name in ("mine", "more", "aaa", "zzz"):
        sys.modules.pop(name, None)


@pytest.fixture
def mine(install):
    """Return a function that installs the backend "mine", with more code, and returns its module."""

    def mine(lines=""):
        install("mine", loopback(lines))
        _registry.records()  # imports it
        return sys.modules["mine"]

    return mine


def refusal(call, error=BackendError):
    """Return the text of a call's exception."""
    with pytest.raises(error) as caught:
        call()
    return str(caught.value)


def test_a_backend_of_another_package_comes_first(mine):
    mine = mine()
    assert same(HALF.apply(X, 3), WANT)
    assert mine.calls == {"rotate": 1, "make_tables": 0}
    assert same(HALF.rotation(3, like=X).apply((X, X))[1], WANT)
    assert mine.calls == {"rotate": 2, "make_tables": 1}
    explanation = ra.explain(X, 3)
    assert (explanation.backend, explanation.declined) == ("mine", {})
    first = ra.backends()[0]
    assert (first.name, first.serves, first.usable, first.description) == ("mine", "numpy:ndarray", True, "")
    assert same(HALF.apply(X, 3, backend="array-api"), WANT)
    assert mine.calls["rotate"] == 2
    assert same(HALF.apply(X, 3, backend="mine"), WANT)
    assert mine.calls["rotate"] == 3
    assert ra.explain(X, 3, backend="array-api").declined["mine"] == "backend='array-api' was requested"
    assert "'mine'" in refusal(lambda: HALF.apply(X, 3, backend="fast"))


@pytest.mark.parametrize("more", ["", "is_array_api = True"])
def test_tables_for_a_backend_without_make_tables(mine, more):
    mine = mine(f"del make_tables\n{more}")
    assert same(HALF.rotation(3, like=X, backend="mine").apply(X), WANT)
    assert mine.calls == {"rotate": 1, "make_tables": 0}
    replaces = bool(more)  # the array-api backend
    assert ra.explain(X, 3, backend="array-api").backend == ("mine" if replaces else "array-api")


def test_optional_functions_are_used(mine):
    mine = mine("""
        def description():
            return "as fast as it was"


        def unavailable_reason():
            return ""


        def try_fast(x, source, options, out):
            calls["try_fast"] = calls.get("try_fast", 0) + 1
            return NotImplemented if source.values else x.copy()
    """)
    assert same(HALF.apply(X, 0), X)
    assert (mine.calls["rotate"], mine.calls["try_fast"]) == (0, 1)
    assert same(HALF.apply(X, 3), WANT)
    assert (mine.calls["rotate"], mine.calls["try_fast"]) == (1, 2)
    assert ra.backends()[0].description == ra.explain(X, 3).notes[0] == "as fast as it was"


DECLINES = {
    "only one array at a time": 'return "only one array at a time" if len(xs) > 1 else None',
    "decline_reason() raised KeyError: 'of its own'": 'raise KeyError("of its own")',
    "SystemExit: no licence": 'raise SystemExit("no licence")',
}


@pytest.mark.parametrize("reason", DECLINES)
def test_a_backend_declines_by_a_reason_or_an_exception(mine, reason):
    mine = mine(f"def decline_reason(xs, source):\n    {DECLINES[reason]}\n")
    np.testing.assert_allclose(HALF.apply((X, X), 3)[1], WANT, rtol=0, atol=1e-6)
    assert reason in ra.explain((X, X), 3).declined["mine"]
    assert not mine.calls["rotate"]
    assert reason in refusal(lambda: HALF.apply((X, X), 3, backend="mine"))
    assert reason in refusal(lambda: HALF.rotation(3, like=X).apply((X, X), backend="mine"))
    HALF.apply(X, 3)
    assert mine.calls["rotate"] == ("array" in reason)


FAULTY = {
    "too few results": ("return ()", BackendError, "0 arrays for 1"),
    "an exception": ("raise ZeroDivisionError('by it')", ZeroDivisionError, "by it"),
    "an exception of memory": ("raise MemoryError('by it')", MemoryError, "by it"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_fault_while_computing_is_not_swallowed(mine, name):
    code, error, text = FAULTY[name]
    mine(f"def rotate(call):\n    {code}\n")
    for out in (None, np.zeros_like(X)):
        assert text in refusal(lambda out=out: HALF.apply(X, 3, out=out), error)
        assert text in refusal(lambda out=out: HALF.rotation(3, like=X).apply(X, out=out), error)


def test_a_description_that_raises_is_reported(mine):
    mine("def description():\n    raise OSError('no such chip')\n\n\nunavailable_reason = description\n")
    first = ra.backends()[0]
    assert "OSError: no such chip" in first.description
    assert first.usable is False
    assert "OSError" in ra.explain(X, 3).notes[0]


RECORD = "RECORD = ('mine', ('numpy:ndarray',), 'mine')\n"
BROKEN = {
    "missing module": (None, ["'mine:RECORD'", "ModuleNotFoundError"]),
    "module that exits": ("raise SystemExit('\x1b]0;title\x07')\n", ["SystemExit: \\x1b]0;title\\x07"]),
    "record of two items": ("RECORD = ('mine', ('numpy:ndarray',))\n", ["(name, types, module)"]),
    "types in one string": ("RECORD = ('mine', 'numpy:ndarray', 'mine')\n", ["tuple of 'module:name'"]),
    "a dot for the colon": (RECORD.replace("numpy:", "numpy."), ["needs one colon, as 'numpy:ndarray'"]),
    "types that are classes": ("import numpy\nRECORD = ('mine', (numpy.ndarray,), 'mine')\n", ["TypeError"]),
    "no name": (RECORD.replace("'mine'", "''", 1), ["TypeError"]),
    "missing backend module": (
        RECORD.replace("'mine')", "'mine.more')"), ["'mine.more' cannot be used", "ModuleNotFoundError"]
    ),
    "missing functions": (
        f"{RECORD}name = 'mine'\ndef make_tables(*args): 1 / 0\n", ["'mine' cannot be used", "lacks rotate"]
    ),
    "another name in the module": (
        loopback().replace('name = "mine"', 'name = "yours"'), ["cannot be used", "lacks the name 'mine'"]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_backend_breaks_no_call(install, name):
    """Other backends serve the call; explain, backends and backend= report the fault."""
    module, phrases = BROKEN[name]
    install("mine", module)
    np.testing.assert_allclose(HALF.apply(X, 3), WANT, rtol=0, atol=1e-6)
    HALF.rotation(3, like=X).apply(X)
    (broken,) = (backend for backend in ra.backends() if backend.name == "mine")
    assert broken.usable is False
    refused = refusal(lambda: HALF.apply(X, 3, backend="mine"))
    assert refused.startswith("backend 'mine' cannot be used")
    for text in (ra.explain(X, 3).declined["mine"], broken.description, refused):
        assert all(phrase in text for phrase in phrases), (phrases, text)


@pytest.mark.parametrize("name", ["native", "torch", "array-api"])
def test_an_entry_point_with_a_built_in_name(install, name):
    """The entry point is broken; the built-in backend of that name is unchanged."""
    install("mine", f"RECORD = ({name!r}, ('numpy:ndarray',), 'mine')\n", point=name)
    theirs = [backend for backend in ra.backends() if "is taken" in backend.description]
    assert [(backend.name, backend.usable) for backend in theirs] == [(name, False)]
    for backend in ("array-api", *["native"] * (_native.kernel is not None)):
        assert ra.explain(X, 3, backend=backend).backend == backend
        assert same(HALF.apply(X, 3, backend=backend), WANT)


def test_a_backend_serves_despite_broken_packages(install, mine):
    install("aaa", "raise RuntimeError('at import')\n")
    install("more", "RECORD = ('mine', ('numpy:ndarray',), 'more')\n", point="mine")
    install("zzz", "RECORD = ('zzz', ('numpy:ndarray',), 'nowhere_at_all')\n")
    mine()
    explanation = ra.explain(X, 3)
    assert explanation.backend == "mine"
    assert "RuntimeError: at import" in explanation.declined["aaa"]
    assert "nowhere_at_all" in explanation.declined["zzz"]
    listed = {(backend.name, backend.usable, "is taken" in backend.description) for backend in ra.backends()}
    assert {("aaa", False, False), ("zzz", False, False)} <= listed
    assert {("mine", True, False), ("mine", False, True)} <= listed  # two packages with one name


def test_an_error_has_the_name_and_the_reason_of_the_backend(mine):
    mine("def decline_reason(xs, source):\n    return 'it is asleep'\n")
    for name, reason in (("mine", "it is asleep"), ("nonesuch", "backend is 'nonesuch'; give None")):
        with pytest.raises(BackendError) as caught:
            HALF.apply(X, 3, backend=name)
        error = pickle.loads(pickle.dumps(caught.value))
        assert (error.backend, str(error)) == (name, str(caught.value))
        assert error.reason.startswith(reason)


def test_types_of_a_library_that_is_not_loaded(install):
    install("mine", "RECORD = ('mine', ('no_such_library_here:Array',), 'no_such_module_here')\n")
    assert "mine" not in ra.explain(X, 3).declined
    first = ra.backends()[0]
    assert (first.name, first.usable) == ("mine", None)
    assert "not imported" in first.description
    assert "does not serve" in refusal(lambda: HALF.apply(X, 3, backend="mine"))


def test_entry_points_are_read_once_with_the_first_array(install, monkeypatch):
    """Of an interpreter; a name or an attribute of a spec reads none."""
    install("mine", loopback())
    entry_points = mock.Mock(wraps=importlib.metadata.entry_points)
    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    rope = ra.RoPE(16)
    assert rope.frequencies
    assert not entry_points.called
    for _ in range(3):
        rope.apply(X, 3)
        rope.rotation(3, like=X.astype("float64"))
        assert ra.backends()[0].name == ra.explain(X, 3).backend == "mine"
    entry_points.assert_called_once_with(group="rope_array.backends")


# ---- out= of another package's backend ----


def test_results_are_copied_for_a_backend_without_outs(mine):
    mine, x, out = mine(), X.copy(), np.zeros_like(X)
    assert HALF.apply(x, 3, out=out) is out
    assert same(out, WANT)
    outs = (x, np.zeros_like(x))
    assert HALF.apply((x, X), 3, out=outs) is outs
    assert same(outs, (WANT, WANT))
    out[...] = 0
    assert HALF.rotation(3, like=X).apply(X, out=out) is out
    assert same(out, WANT)
    assert mine.calls == {"rotate": 3, "make_tables": 1}
    buffer = np.zeros((3, 5, 16), dtype="float32")
    assert "shares memory" in refusal(lambda: HALF.apply(buffer[:2], 3, out=buffer[1:]), ra.RoPEError)
    assert mine.calls["rotate"] == 3


def test_results_are_written_by_a_backend_that_accepts_outs(mine):
    mine = mine("""
        accepts_outs = True


        def rotate(call, outs=None):
            (y,) = _tables.rotate_by_array_api(call)
            if outs is None:
                return (y,)
            calls["outs"] = calls.get("outs", 0) + 1
            outs[0][...] = y
    """)
    out = np.zeros_like(X)
    assert HALF.apply(X, 3, out=out) is out
    assert same(out, WANT)
    assert mine.calls["outs"] == 1


def test_a_backend_that_declines_by_no_text_declines_with_a_reason(mine):
    mine("def decline_reason(xs, source):\n    return False\n")
    assert "decline_reason() returned False" in ra.explain(X, 3).declined["mine"]


def test_a_library_that_lacks_an_operation_is_refused_before_a_call(mine):
    mine("""
        import types
        import array_api_compat.numpy as xp
        from rope_array.backend_tools import Library, rotate_by_array_api as rotate
        is_array_api = True
        lib = Library("mine", types.SimpleNamespace(**{**vars(xp), "where": None}), implicit_device=True)
        library = lambda x: lib
    """)
    for call in (HALF.apply, ra.explain, lambda x, pos: HALF.rotation(pos, like=x)):
        assert "in a trial rotation" in refusal(lambda call=call: call(X, 3), ArrayTypeError)


def test_a_backend_supplies_the_library_of_its_type(mine):
    mine("""
        from rope_array.backend_tools import ArrayTypeError, Library


        class Mine(Library):
            def is_array(self, value):
                return True

            def check_supported(self, value):
                raise ArrayTypeError("x is sparse; give its dense()")


        def library(x):
            return Mine("mine", None, implicit_device=True)
    """)
    for call in (HALF.apply, ra.explain):
        assert "give its dense()" in refusal(lambda call=call: call(X, 3), ArrayTypeError)


# ---- threads ----

FIRST_CALLS = """
    import sys
    import numpy as np
    from rope_array.testing._libraries import LIBRARIES
    from threads import in_threads

    lib, (folder, repeats, own) = LIBRARIES[sys.argv[1]], sys.argv[2:]
    sys.path.insert(0, folder)
    x = lib.asarray(np.random.default_rng(0).standard_normal((2, 3, 8)), "float32")
    pos = lib.asarray(np.arange(3, dtype=np.int32))
    lib.to_numpy(x)
    sys.setswitchinterval(1e-6)


    def first_call(i):
        import rope_array as ra  # threads race for the import too
        rope = ra.RoPE(8, pairing="half")
        forms = set()
        for name in ("mine", own) if i % 2 else (own, "mine"):
            made = ra.apply(x, pos, pairing="half", backend=name), rope.apply((x, x), pos, backend=name)[1]
            made += (rope.rotation(pos, like=x, backend=name).apply(x, backend=name),)
            forms.add((name, *{lib.to_numpy(y).tobytes() for y in made}))
        explanation = ra.explain(x, pos, rope)
        assert explanation.backend == "mine", explanation
        assert "aaa" in explanation.declined, explanation
        assert {"mine", "aaa"} <= {one.name for one in ra.backends()}
        return forms


    for _ in range(int(repeats)):
        for name in [name for name in sys.modules if name.partition(".")[0] in ("rope_array", "mine")]:
            del sys.modules[name]
        results = set.union(*in_threads(first_call))  # each a backend and its bits
        assert [len(each) for each in results] == [2, 2], "threads, or forms of the call, differ"
        assert sys.modules["mine"].calls["rotate"] >= 16
"""


def test_threads_of_the_array_api_backend_share_no_memory(request):
    def rotated(i):
        return HALF.apply(x, range(i, i + 256), backend="array-api").tobytes()

    x = np.random.default_rng(0).standard_normal((8, 256, 16), np.float32)
    expected = [rotated(i) for i in range(8)]
    request.addfinalizer(functools.partial(sys.setswitchinterval, sys.getswitchinterval()))
    sys.setswitchinterval(1e-6)
    assert in_threads(lambda i: {rotated(i) for _ in range(20)}) == [{bits} for bits in expected]


def test_first_calls_of_eight_threads_agree(lib, install):
    """With a backend of another package, another that is broken, and the library's own backend."""
    cls = type(lib.asarray(np.zeros(1), "float32"))
    install("mine", loopback(types=(f"{cls.__module__}:{cls.__name__}",)))
    folder = install("aaa", "raise RuntimeError('at import')\n")
    repeats = "8" if NIGHTLY else {"numpy": "4", "torch": "2"}.get(lib.name, "1")
    child.run(FIRST_CALLS, lib.name, str(folder), repeats, served(lib)[0])
