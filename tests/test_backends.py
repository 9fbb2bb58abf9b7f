"""Backends: the list, the choice and its reasons, by name, and backends of other packages."""

import os
import textwrap

import child
import numpy as np
import pytest
from compare import KERNEL, normal
from conftest import sample

import rope_array as ra
from rope_array import (
    ArrayTypeError,
    BackendError,
    PositionError,
    RoPEError,
    ShapeError,
    SpecError,
    _registry,
)
from rope_array._backends import _native

NUMPY, TORCH = pytest.mark.library("numpy"), pytest.mark.library("torch")
BUILTIN = [
    *(
        "native",
        "numpy",
        "native",
        "triton",
        "torch",
        "jax",
        "cuda",
        "dask",
        "cubed",
        "mlx",
        "ndonnx",
        "tensorflow",
    ),
    "array-api",
]
BACKENDS = {
    "numpy": ["native", "numpy", "array-api"],
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


def test_backends_are_listed_in_the_order_of_dispatch():
    listed = [one for one in ra.backends() if one.name in BUILTIN]
    assert [one.name for one in listed] == BUILTIN
    assert listed[-1].usable is True
    assert {one.serves.partition(":")[0] for one in listed[:-1]} == {
        *("numpy", "torch", "jax", "cupy", "dask.array", "cubed", "mlx.core", "ndonnx", "tensorflow")
    }
    for one in listed:
        assert isinstance(one.description, str)
        assert one.usable in (True, False, None)
        with pytest.raises(AttributeError):
            one.usable = True


def test_backends_of_a_loaded_library_are_usable(lib):
    assert lib.native
    native = "native" if _native.kernel is not None else None
    usable = [one.name for one in ra.backends() if one.usable]
    assert {name for name in BACKENDS[lib.name] if name not in ("native", "array-api")} <= set(usable)
    assert (native is None) == ("native" not in usable)


def test_listing_backends_imports_no_library():
    script = """
        import sys
        import rope_array as ra
        libraries = {"numpy", "torch", "jax", "jaxlib", "dask", "cupy", "array_api_strict", "ml_dtypes"}
        libraries |= {"mlx", "ndonnx", "tensorflow"}
        listed = ra.backends()
        assert not libraries & set(sys.modules), libraries & set(sys.modules)
        print(*(f"{one.name}={one.usable}" for one in listed))
        assert all("not imported" in one.description for one in listed if one.usable is None)
        import numpy
        print(*(f"{one.name}={one.usable}" for one in ra.backends()))
        assert not (libraries - {"numpy"}) & set(sys.modules)
    """
    before, after = child.run(script, ROPE_ARRAY_KERNEL_LEVEL="none").splitlines()
    assert before.split() == [f"{name}={None if name != 'array-api' else True}" for name in BUILTIN]
    assert after.split()[:2] == ["native=False", "numpy=True"]
    assert after.split()[2:] == before.split()[2:]


def test_without_the_kernel_errors_name_the_reason():
    script = """
        import numpy as np
        import rope_array as ra
        x = np.ones((3, 16), dtype="float32")
        native = ra.backends()[0]
        assert (native.name, native.usable) == ("native", False)
        assert "ROPE_ARRAY_KERNEL_LEVEL" in native.description
        explanation = ra.explain(x, 3)
        assert explanation.backend == "numpy"
        assert "switched off" in explanation.declined["native"]
        try:
            ra.apply(x, 3, backend="native")
        except ra.BackendError as error:
            assert "switched off" in str(error)
        else:
            raise AssertionError("served")
        print(ra.RoPE(16).apply(x, 3).tobytes() == ra.RoPE(16).apply(x, 3, backend="numpy").tobytes())
    """
    assert child.run(script, ROPE_ARRAY_KERNEL_LEVEL="none").split() == ["True"]


@KERNEL
def test_an_unknown_kernel_level_is_refused():
    script = """
        import sys
        import numpy as np
        import rope_array as ra
        for call in (lambda: ra.apply(np.ones((3, 16)), 3), lambda: ra.explain(np.ones((3, 16)), 3)):
            try:
                call()
            except ra.BackendError as error:
                assert all(repr(name) in str(error) for name in ("avx9000", "none", *sys.argv[1:])), error
            else:
                raise AssertionError("served")
    """
    child.run(script, *_native.kernel.level_names(), ROPE_ARRAY_KERNEL_LEVEL="avx9000")


@KERNEL
@NUMPY
def test_the_kernel_describes_its_instruction_set():
    native = ra.backends()[0]
    assert native.usable
    assert _native.kernel.level_name() in native.description
    assert native.description in ra.explain(np.ones((3, 16)), 3).notes


# ---- the choice ----


def test_explain_names_the_backend_that_serves(lib):
    x = normal(lib, 2, 5, 16)
    with lib.running():
        explanation = ra.explain(x, range(5), ROPE)
        assert explanation.backend == served(lib)[0]
        assert set(explanation.declined) == set(BACKENDS[lib.name]) - set(served(lib)) - {"array-api"}
        for given in ((x, 3, None), (x, [0, 1, 2, 3, 0.5], ROPE), ((x, x), 3, None)):
            assert ra.explain(*given).backend == explanation.backend
        for name in served(lib):
            forced = ra.explain(x, 3, ROPE, backend=name)
            assert forced.backend == name
            asked_before = served(lib)[: served(lib).index(name)]
            assert all(forced.declined[other] == "another was asked for" for other in asked_before)


def test_the_array_api_backend_by_name(lib):
    x = normal(lib, 2, 5, 16)
    with lib.running():
        name = ra.explain(x, 3, ROPE, backend="array-api").backend
        assert name == BACKENDS[lib.name][-1]
        got = lib.to_numpy(ROPE.apply(x, 3, backend="array-api"))
        assert np.allclose(got, lib.to_numpy(ROPE.apply(x, 3)), atol=1e-6)


def test_explain_rotates_nothing(lib, monkeypatch):
    def never(*args, **more):
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
        assert "Hugging Face" in ra.explain(x, 3, angles="float32").notes[-1]


@NUMPY
@pytest.mark.parametrize(
    ("shapes", "pos", "seq_axis", "says"),
    [
        ([(2, 4, 7, 8)], range(7), -2, "along axis 2 of x (seq_axis=-2), of size 7"),
        ([(2, 7, 4, 8)], range(7), 1, "along axis 1 of x (seq_axis=-3), of size 7"),
        (
            [(2, 7, 7, 8)],
            range(7),
            -2,
            "along axis 2 of x (seq_axis=-2), of size 7; not along axis 1, of the same size",
        ),
        ([(2, 4, 7, 8)], 0, -2, "along axis 2 of x (seq_axis=-2), of size 7, all 7 at one position"),
        (
            [(2, 4, 7, 8)],
            [[3], [9]],
            -2,
            "along axis 2 of x (seq_axis=-2), of size 7, all 7 at one position for each index of axis 0",
        ),
        (
            [(2, 7, 4, 8)],
            [[[3], [4], [5], [6]], [[7], [8], [9], [10]]],
            -3,
            "along axis 1 of x (seq_axis=-3), of size 7, "
            "all 7 at one position for each index of axis 0 and 2",
        ),
        ([(2, 4, 7, 8)], [[3]], -2, "along axis 2 of x (seq_axis=-2), of size 7, all 7 at one position"),
        (
            [(2, 4, 1, 8), (2, 4, 7, 8)],
            [3],
            -2,
            "along axis 2 of x (seq_axis=-2), of size 1; "
            "and along axis 2 of x (seq_axis=-2), of size 7, all 7 at one position",
        ),
        ([(8,)], 0, -2, "one, as x is a single vector"),
        (
            [(2, 4, 1, 8), (2, 4, 7, 8)],
            [[3], [4]],
            -2,
            "along axis 2 of x (seq_axis=-2), of size 1; "
            "and along axis 2 of x (seq_axis=-2), of size 7, all 7 at one position for each index of axis 0",
        ),
    ],
    ids=[
        "default",
        "seq_axis",
        "equal sizes",
        "number",
        "one for each sequence",
        "one for each head",
        "one of a list",
        "one for all lengths",
        "vector",
        "different lengths",
    ],
)
def test_notes_name_the_axis_of_positions(lib, shapes, pos, seq_axis, says):
    xs = tuple(normal(lib, *shape) for shape in shapes)
    assert f"positions: {says}" in ra.explain(xs, pos, seq_axis=seq_axis).notes


def test_notes_name_each_precision_once():
    x = np.ones((5, 16))
    notes = ra.explain((x, x.astype("float16"), x), 3).notes
    assert "rotated: float64 in float64, float16 in float32" in notes


@NUMPY
def test_an_explanation_prints_as_lines():
    explanation = ra.explain(np.ones((3, 16)).astype(">f8"), 3)
    lines = str(explanation).splitlines()
    assert lines[0] == "backend: array-api"
    assert lines[1:4] == [f"  {note}" for note in explanation.notes]
    assert lines[4:] == [f"declined: {name}: {reason}" for name, reason in explanation.declined.items()]
    assert repr(explanation) == str(explanation)


class Kept(np.ndarray):
    pass


NUMPY_DECLINES = {
    "byte order": (lambda: np.ones((5, 16)).astype(np.dtype("f8").newbyteorder()), "other byte order"),
    "subclass": (lambda: np.ones((5, 16)).view(Kept), "Kept is a subclass"),
    "subclass in a tuple": (lambda: (np.ones((5, 16)), np.ones((5, 16)).view(Kept)), "Kept is a subclass"),
}


@NUMPY
@pytest.mark.parametrize("name", NUMPY_DECLINES)
def test_decline_reasons_of_numpy(name):
    make, reason = NUMPY_DECLINES[name]
    explanation = ra.explain(make(), 3)
    assert explanation.backend == "array-api"
    assert list(explanation.declined) == ["native", "numpy"]
    assert reason in explanation.declined["numpy"]
    if _native.kernel is not None:
        assert reason in explanation.declined["native"]
    for backend in ("native", "numpy"):
        with pytest.raises(BackendError, match=f"{backend}.*does not serve"):
            ra.apply(make(), 3, backend=backend)
    x = make()
    first = x[-1] if isinstance(x, tuple) else x
    with pytest.raises(BackendError, match=reason):
        ra.RoPE(16).rotation(3, like=first, backend="numpy")
    with pytest.raises(BackendError, match=reason):
        ra.RoPE(16).rotation(3, like=first).apply(x, backend="numpy")


@KERNEL
@TORCH
def test_decline_reasons_of_pytorch():
    import torch

    x, pos = torch.ones(5, 16), torch.arange(5.0)
    assert ra.explain(x, pos).backend == "native"
    recorded = ra.explain(x, pos.requires_grad_())
    assert recorded.backend == "torch"
    assert recorded.declined == {
        "native": "a gradient of positions or tables is recorded",
        "triton": "a tensor is on cpu; the kernel runs on GPUs",
    }
    with torch.no_grad():
        assert ra.explain(x, pos).backend == "native"
    assert ra.explain(x.requires_grad_(), 3).backend == "native"
    assert "on meta" in ra.explain(torch.ones(5, 16, device="meta"), 3).declined["native"]
    reasons = []
    torch.func.vmap(lambda x: reasons.append(ra.explain(x, 3).declined["native"]) or x)(torch.ones(2, 5, 16))
    assert reasons == ["a functorch transform is active"]


REFUSED = {
    "no array": (lambda lib: ("x", 3), {}, ArrayTypeError),
    "an empty tuple": (lambda lib: ((), 3), {}, ArrayTypeError),
    "integers": (lambda lib: (lib.asarray(np.ones((5, 16)), "int32"), 3), {}, ArrayTypeError),
    "a single number": (lambda lib: (lib.asarray(np.ones(()), "float32"), 3), {}, ShapeError),
    "a width": (lambda lib: (normal(lib, 5, 8), 3, ROPE), {}, ShapeError),
    "a width in a tuple": (lambda lib: ((normal(lib, 5, 16), normal(lib, 5, 8)), 3, ROPE), {}, ShapeError),
    "an odd width": (lambda lib: (normal(lib, 5, 15), 3), {}, SpecError),
    "positions too long": (lambda lib: (normal(lib, 5, 16), range(4)), {}, ShapeError),
    "positions too deep": (lambda lib: (normal(lib, 5, 16), [[0], [1]]), {}, ShapeError),
    "ragged positions": (lambda lib: (normal(lib, 2, 5, 16), [[0, 1], [2]]), {}, ShapeError),
    "positions of strings": (lambda lib: (normal(lib, 5, 16), "abcde"), {}, ArrayTypeError),
    "positions of booleans": (
        lambda lib: (normal(lib, 5, 16), lib.asarray(np.ones(5), "bool")), {}, ArrayTypeError
    ),
    "an axis": (lambda lib: (normal(lib, 5, 16), range(5)), {"seq_axis": 5}, ShapeError),
    "no axis": (lambda lib: (normal(lib, 5, 16), range(5)), {"seq_axis": "x"}, ShapeError),
    "a field": (lambda lib: (normal(lib, 5, 16), 3), {"base": -1.0}, SpecError),
    "rope and fields": (lambda lib: (normal(lib, 5, 16), 3, ROPE), {"base": 5.0}, SpecError),
    "no rope": (lambda lib: (normal(lib, 5, 16), 3, "rope"), {}, SpecError),
    "an unresolved length": (
        lambda lib: (normal(lib, 5, 16), 3, ra.RoPE(16, scaling=ra.DynamicNTK(2.0, 64))), {}, SpecError
    ),
    "coordinates": (
        lambda lib: (normal(lib, 5, 16), range(5), ra.RoPE(16, axes=ra.Axes.chunked(4, 2, 2))), {}, ShapeError
    ),
    "an unknown backend": (lambda lib: (normal(lib, 5, 16), 3), {"backend": "fast"}, BackendError),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_explain_refuses_what_apply_refuses(lib, name):
    arguments, fields, error = REFUSED[name]
    with lib.running():
        texts = []
        for function in (ra.apply, ra.explain):
            with pytest.raises(RoPEError) as caught:
                function(*arguments(lib), **fields)
            assert type(caught.value) is error
            texts.append(str(caught.value))
        assert texts[0] == texts[1]


@NUMPY
def test_explain_does_not_look_at_values():
    x = np.ones((2, 16))
    with pytest.raises(PositionError):
        ra.apply(x, [0.0, float("nan")])
    assert ra.explain(x, [0.0, float("nan")]).backend


# ---- by name ----


def test_each_backend_by_name(lib):
    x, pos = normal(lib, 2, 5, 16), lib.asarray(np.arange(5), "int32")
    with lib.running():
        want = lib.to_numpy(ROPE.apply(x, pos))
        for name in [*served(lib), "array-api"]:
            for y in (
                ROPE.apply(x, pos, backend=name),
                ra.apply((x, x), pos, ROPE, backend=name)[1],
                ROPE.rotation(pos, like=x, backend=name).apply(x, backend=name),
            ):
                assert lib.owns(y)
                assert np.allclose(lib.to_numpy(y), want, atol=1e-6)


def test_the_default_backend_has_the_bits_of_its_name(lib):
    x = normal(lib, 2, 5, 16)
    with lib.running():
        own, forced = (lib.to_numpy(ROPE.apply(x, 3, backend=name)) for name in (None, served(lib)[0]))
        assert own.tobytes() == forced.tobytes()


def test_names_that_do_not_serve(lib):
    x = normal(lib, 5, 16)
    others = sorted(
        {name for names in BACKENDS.values() for name in names} - set(BACKENDS[lib.name]) - {"array-api"}
    )
    with lib.running():
        rotation = ROPE.rotation(range(5), like=x)
        for name in others:
            for call in (
                lambda name=name: ROPE.apply(x, 3, backend=name),
                lambda name=name: ROPE.rotation(3, like=x, backend=name),
                lambda name=name: rotation.apply(x, backend=name),
                lambda name=name: ra.explain(x, 3, backend=name),
            ):
                with pytest.raises(
                    BackendError, match=f"'{name}' does not serve .*its backends are"
                ) as caught:
                    call()
                assert all(repr(one) in str(caught.value) for one in served(lib) if one != "array-api")


@pytest.mark.parametrize("backend", ["", "NumPy", "array_api", "gpu", 5, True, ("numpy",)], ids=repr)
def test_names_of_no_backend(lib, backend):
    x = normal(lib, 5, 16)
    with lib.running():
        rotation = ROPE.rotation(3, like=x)
        for call in (
            lambda: ROPE.apply(x, 3, backend=backend),
            lambda: rotation.apply(x, backend=backend),
            lambda: ROPE.rotation(3, like=x, backend=backend),
            lambda: ra.explain(x, 3, backend=backend),
        ):
            with pytest.raises(BackendError) as caught:
                call()
            text = str(caught.value)
            assert repr(backend) in text
            assert "None or one of" in text
            assert text.count("'native'") == 1  # listed once, though two libraries have it


# ---- backends of other packages ----

# A backend that calls the array-api backend's functions and counts the calls.
LOOPBACK = """
    from rope_array._array_api import rotate as _rotate, tables as _tables
    from rope_array._registry import library_of

    RECORD = ("{name}", {types!r}, "{name}")
    name = "{name}"
    calls = {{"rotate": 0, "make_tables": 0}}


    def rotate(call):
        calls["rotate"] += 1
        return _rotate.rotate(call)


    def make_tables(source, like):
        calls["make_tables"] += 1
        return _tables.make_tables(source, like, library_of(like))
"""


def loopback(name="mine", types=("numpy:ndarray",), more=""):
    return textwrap.dedent(LOOPBACK).format(name=name, types=types) + textwrap.dedent(more)


class Packages:
    """Distributions in a folder, as an installer leaves them."""

    def __init__(self, folder):
        self.folder = folder

    def install(self, name, module, value=None, point=None):
        """Write a module and its entry point; without a module, the entry point alone."""
        info = self.folder / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8"
        )
        line = f"{point or name} = {value or f'{name}:RECORD'}"
        (info / "entry_points.txt").write_text(f"[rope_array.backends]\n{line}\n", encoding="utf-8")
        if module is not None:
            (self.folder / f"{name}.py").write_text(textwrap.dedent(module), encoding="utf-8")
        return self

    def run(self, script, *arguments, **environment):
        paths = [str(self.folder), child.TESTS, *filter(None, [os.environ.get("PYTHONPATH")])]
        script = textwrap.dedent(PRELUDE) + textwrap.dedent(script)
        return child.run(script, *arguments, **{"PYTHONPATH": os.pathsep.join(paths), **environment})


PRELUDE = """
    import numpy as np
    import rope_array as ra

    x = np.random.default_rng(0).standard_normal((2, 5, 16)).astype("float32")
    rope = ra.RoPE(16, pairing="half")


    def refusal(call):
        try:
            call()
        except ra.RoPEError as error:
            return f"{type(error).__name__}: {error}"
        raise AssertionError("not refused")
"""


@pytest.fixture
def packages(tmp_path):
    return Packages(tmp_path)


def test_a_backend_of_another_package_comes_first(packages):
    packages.install("mine", loopback())
    packages.run("""
        y = rope.apply(x, range(5))
        import mine
        assert mine.calls == {"rotate": 1, "make_tables": 0}
        assert np.array_equal(y, rope.apply(x, range(5), backend="array-api"))
        rotation = rope.rotation(range(5), like=x)
        assert np.array_equal(rotation.apply((x, x))[1], y)
        assert mine.calls == {"rotate": 2, "make_tables": 1}
        assert np.array_equal(rope.apply(x, range(5), backend="mine"), y)
        assert np.array_equal(ra.apply((x, x), range(5), rope)[0], y)
        assert mine.calls["rotate"] == 4
        explanation = ra.explain(x, 3)
        assert explanation.backend == "mine" and not explanation.declined
        first = ra.backends()[0]
        assert (first.name, first.serves, first.usable) == ("mine", "numpy:ndarray", True)
        assert first.description == ""
        for name in ("numpy", "array-api"):
            assert np.allclose(rope.apply(x, range(5), backend=name), y, atol=1e-6)
        assert mine.calls["rotate"] == 4
        assert ra.explain(x, 3, backend="numpy").declined["mine"] == "another was asked for"
        assert "'mine'" in refusal(lambda: rope.apply(x, 3, backend="fast"))
    """)


def test_tables_for_a_backend_without_make_tables(packages):
    packages.install("mine", loopback(more="\ndel make_tables\n"))
    packages.run("""
        rotation = rope.rotation(range(5), like=x, backend="mine")
        assert np.array_equal(rotation.apply(x), rope.apply(x, range(5), backend="array-api"))
        import mine
        assert mine.calls == {"rotate": 1, "make_tables": 0}
    """)


def test_optional_functions_are_used(packages):
    more = """
        def description():
            return "as fast as it was"


        def unavailable_reason():
            return ""


        def try_fast(x, source, seq_axis, out):
            calls["try_fast"] = calls.get("try_fast", 0) + 1
            return NotImplemented if source.values else x.copy()
    """
    packages.install("mine", loopback(more=more))
    packages.run("""
        assert np.array_equal(rope.apply(x, 0), x)
        import mine
        assert mine.calls["rotate"] == 0 and mine.calls["try_fast"] == 1
        assert np.array_equal(rope.apply(x, 3), rope.apply(x, 3, backend="array-api"))
        assert mine.calls["rotate"] == 1 and mine.calls["try_fast"] == 2
        assert ra.backends()[0].description == "as fast as it was"
        assert ra.explain(x, 3).notes[0] == "as fast as it was"
    """)


def test_a_backend_may_decline(packages):
    more = """
        def decline_reason(xs, source):
            return "only one array at a time" if len(xs) > 1 else None
    """
    packages.install("mine", loopback(more=more))
    packages.run("""
        want = rope.apply((x, x), 3, backend="array-api")
        y = rope.apply((x, x), 3)
        import mine
        assert not mine.calls["rotate"] and np.allclose(y, want, atol=1e-6)
        assert ra.explain((x, x), 3).declined["mine"] == "only one array at a time"
        text = refusal(lambda: rope.apply((x, x), 3, backend="mine"))
        assert text.startswith("BackendError") and "only one array at a time" in text
        text = refusal(lambda: rope.rotation(3, like=x).apply((x, x), backend="mine"))
        assert "only one array at a time" in text
        rope.apply(x, 3)
        assert mine.calls["rotate"] == 1 and ra.explain(x, 3).backend == "mine"
    """)


def test_a_decline_reason_that_raises_declines(packages):
    more = """
        def decline_reason(xs, source):
            raise KeyError("of its own")
    """
    packages.install("mine", loopback(more=more))
    packages.run("""
        y = rope.apply(x, 3)
        assert np.allclose(y, rope.apply(x, 3, backend="array-api"), atol=1e-6)
        explanation = ra.explain(x, 3)
        assert "decline_reason() raised KeyError: 'of its own'" in explanation.declined["mine"]
        assert explanation.backend in ("native", "numpy")
        text = refusal(lambda: rope.apply(x, 3, backend="mine"))
        assert text.startswith("BackendError") and "decline_reason() raised KeyError" in text
    """)


def test_a_decline_reason_that_exits_declines(packages):
    packages.install(
        "mine",
        loopback(
            more="""

        def decline_reason(xs, source):
            raise SystemExit("no licence")
    """
        ),
    )
    packages.run("""
        rope.apply(x, 3)
        assert "SystemExit: no licence" in ra.explain(x, 3).declined["mine"]
    """)


def test_too_few_results_are_an_error(packages):
    packages.install(
        "mine",
        loopback(
            more="""

        def rotate(call):
            return ()
    """
        ),
    )
    packages.run("""
        out = np.zeros_like(x)
        for given in (None, out):
            assert "returned 0 arrays for 1" in refusal(lambda: rope.apply(x, 3, out=given))
        assert not out.any()
    """)


def test_an_array_api_backend_without_make_tables(packages):
    packages.install("mine", loopback(more="is_array_api = True\ndel make_tables\n"))
    packages.run("""
        assert ra.explain(x, 3).backend == "mine"
        ours = rope.rotation(3, like=x, backend="array-api")
        assert (ours.cos == rope.rotation(3, like=np.ones(1, "float32")).cos).all()
    """)


def test_an_exception_while_computing_is_not_swallowed(packages):
    packages.install(
        "mine",
        loopback(
            more="""

        def rotate(call):
            raise MemoryError if hasattr(call.source, "cos") else ZeroDivisionError
    """
        ),
    )
    packages.run("""
        for error, call in [
            (ZeroDivisionError, lambda: rope.apply(x, 3)),
            (ZeroDivisionError, lambda: rope.apply(x, 3, backend="mine")),
            (ZeroDivisionError, lambda: rope.apply(x.copy(), 3, out=np.zeros_like(x))),
            (MemoryError, lambda: rope.rotation(3, like=x).apply(x)),
        ]:
            try:
                call()
            except error:
                continue
            raise AssertionError("swallowed")
        rope.apply(x, 3, backend="numpy")
    """)


def test_a_description_that_raises_is_reported(packages):
    more = """
        def description():
            raise OSError("no such chip")


        def unavailable_reason():
            raise OSError("no such chip")
    """
    packages.install("mine", loopback(more=more))
    packages.run("""
        first = ra.backends()[0]
        assert first.name == "mine" and "OSError: no such chip" in first.description
        assert first.usable is False
        assert "OSError" in ra.explain(x, 3).notes[0]
        rope.apply(x, 3)
    """)


BROKEN = {
    "missing module": (None, "mine:RECORD", ["entry point 'mine:RECORD'", "ModuleNotFoundError"]),
    "module that fails": (
        "import no_such_module_at_all\n", None, ["ModuleNotFoundError", "no_such_module_at_all"]
    ),
    "module that exits": ("raise SystemExit('no licence')\n", None, ["SystemExit", "no licence"]),
    "control characters": ("raise OSError('\x1b]0;title\x07')\n", None, ["OSError: \\x1b]0;title\\x07"]),
    "syntax": ("def (:\n", None, ["SyntaxError"]),
    "missing record": ("name = 'mine'\n", None, ["AttributeError", "RECORD"]),
    "no record": ("RECORD = 5\n", None, ["TypeError"]),
    "record of two items": ("RECORD = ('mine', ('numpy:ndarray',))\n", None, ["TypeError"]),
    "record of four items": ("RECORD = ('mine', (), 'mine', 4)\n", None, ["TypeError"]),
    "types in one string": (
        "RECORD = ('mine', 'numpy:ndarray', 'mine')\n", None, ["TypeError", "tuple of str"]
    ),
    "types that are classes": (
        "import numpy\nRECORD = ('mine', (numpy.ndarray,), 'mine')\n", None, ["TypeError"]
    ),
    "no name": ("RECORD = ('', ('numpy:ndarray',), 'mine')\n", None, ["TypeError"]),
    "a name that is taken": ("RECORD = ('numpy', ('numpy:ndarray',), 'mine')\n", None, ["'numpy' is taken"]),
    "the array-api backend's name": (
        "RECORD = ('array-api', ('numpy:ndarray',), 'mine')\n", None, ["'array-api' is taken"]
    ),
    "missing backend module": (
        "RECORD = ('mine', ('numpy:ndarray',), 'mine.more')\n",
        None,
        ["'mine.more' cannot be used", "ModuleNotFoundError"],
    ),
    "missing functions": (
        "RECORD = ('mine', ('numpy:ndarray',), 'mine')\nname = 'mine'\ndef make_tables(*args): 1 / 0\n",
        None,
        ["'mine' cannot be used", "lacks rotate"],
    ),
    "another name in the module": (
        loopback().replace('name = "mine"', 'name = "yours"'),
        None,
        ["cannot be used", "lacks the name 'mine'"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_backend_breaks_no_call(packages, name):
    """Other backends serve the call; explain, backends and backend= report the fault."""
    module, value, parts = BROKEN[name]
    packages.install("mine", module, value)
    out = packages.run("""
        y = rope.apply(x, range(5))
        assert np.allclose(y, rope.apply(x, range(5), backend="array-api"), atol=1e-6)
        rope.rotation(3, like=x).apply(x)
        explanation = ra.explain(x, 3)
        assert explanation.backend in ("native", "numpy")
        broken = [one for one in ra.backends() if one.name == "mine"]
        assert [one.usable for one in broken] == [False], broken
        text = refusal(lambda: rope.apply(x, 3, backend="mine"))
        assert text.startswith("BackendError: backend 'mine' cannot be used"), text
        assert text.endswith(".")
        builtin = {one.name: one.usable for one in ra.backends() if one.serves == "numpy:ndarray"}
        assert builtin["numpy"] is True
        for text in (explanation.declined["mine"], broken[0].description, text):
            print(text.replace("\\n", " "))
    """)
    for line in out.splitlines():
        assert all(part in line for part in parts), (parts, line)


@pytest.mark.parametrize("name", ["native", "numpy", "torch", "array-api"])
def test_an_entry_point_with_a_built_in_name(packages, name):
    """The entry point is broken; the built-in backend of that name is unchanged."""
    packages.install("mine", f"RECORD = ({name!r}, ('numpy:ndarray',), 'mine')\n", point=name)
    packages.run(
        """
        import sys
        name = sys.argv[1]
        explanation = ra.explain(x, 3)
        assert explanation.backend in ("native", "numpy")
        listed = ra.backends()
        ours = [one for one in listed if one.name == "numpy" and one.serves]
        assert [one.usable for one in ours] == [True]
        theirs = [one for one in listed if "is taken" in one.description]
        assert [(one.name, one.usable) for one in theirs] == [(name, False)]
        assert ra.explain(x, 3, backend="numpy").backend == "numpy"
        rope.apply(x, 3, backend="numpy")
        rope.apply(x, 3, backend="array-api")
        """,
        name,
    )


def test_a_backend_serves_despite_two_broken_packages(packages):
    packages.install("aaa", "raise RuntimeError('at import')\n")
    packages.install("mine", loopback())
    packages.install("zzz", "RECORD = ('zzz', ('numpy:ndarray',), 'nowhere_at_all')\n")
    packages.run("""
        rope.apply(x, 3)
        import mine
        assert mine.calls["rotate"] == 1
        explanation = ra.explain(x, 3)
        assert explanation.backend == "mine"
        assert "RuntimeError: at import" in explanation.declined["aaa"]
        assert "nowhere_at_all" in explanation.declined["zzz"]
        listed = {one.name: one.usable for one in ra.backends()}
        assert (listed["aaa"], listed["mine"], listed["zzz"]) == (False, True, False)
        assert "at import" in refusal(lambda: rope.apply(x, 3, backend="aaa"))
    """)


def test_two_packages_with_one_name(packages):
    """One package serves; ra.backends() lists the other as broken."""
    packages.install("mine", loopback())
    packages.install("more", "RECORD = ('mine', ('numpy:ndarray',), 'more')\n", point="mine")
    packages.run("""
        rope.apply(x, 3)
        mine_ = [(one.usable, "is taken" in one.description) for one in ra.backends() if one.name == "mine"]
        assert sorted(mine_) == [(False, True), (True, False)], mine_
    """)


def test_types_of_a_library_that_is_not_loaded(packages):
    packages.install("mine", "RECORD = ('mine', ('no_such_library_here:Array',), 'no_such_module_here')\n")
    packages.run("""
        import sys
        rope.apply(x, 3)
        assert "mine" not in ra.explain(x, 3).declined
        first = ra.backends()[0]
        assert (first.name, first.usable) == ("mine", None)
        assert "not imported" in first.description
        assert "does not serve" in refusal(lambda: rope.apply(x, 3, backend="mine"))
        assert not {"no_such_library_here", "no_such_module_here"} & set(sys.modules)
    """)


def test_entry_points_are_read_with_the_first_array(packages):
    packages.install("mine", loopback())
    done = child.run(
        """
        import sys
        import rope_array as ra
        assert "importlib.metadata" not in sys.modules
        assert "mine" not in sys.modules
        ra.RoPE(16).frequencies, ra.Linear(2.0), ra.explain
        assert "importlib.metadata" not in sys.modules

        import numpy as np
        import importlib.metadata
        read, real = [], importlib.metadata.entry_points

        def counting(**given):
            read.append(given)
            return real(**given)

        importlib.metadata.entry_points = counting
        rope = ra.RoPE(16)
        assert not read
        for _ in range(3):
            rope.apply(np.ones((3, 16)), 3)
            rope.rotation(3, like=np.ones((3, 16), dtype="float32"))
            ra.backends(), ra.explain(np.ones((3, 16)), 3)
        assert read == [{"group": "rope_array.backends"}]
        assert "mine" in sys.modules
        print("read")
        """,
        PYTHONPATH=os.pathsep.join(filter(None, [str(packages.folder), os.environ.get("PYTHONPATH")])),
    )
    assert done.split() == ["read"]


# ---- out= of another package's backend ----


def test_results_are_copied_for_a_backend_without_outs(packages):
    packages.install("mine", loopback())
    packages.run("""
        out, kept = np.zeros_like(x), x.copy()
        want = rope.apply(x, 3, backend="mine")
        assert rope.apply(x, 3, out=out) is out and np.array_equal(out, want)
        outs = (x, np.zeros_like(x))
        assert rope.apply((x, kept), 3, out=outs) is outs
        assert np.array_equal(x, want) and np.array_equal(outs[1], want)
        out[...] = 0
        assert rope.rotation(3, like=kept).apply(kept, out=out) is out and np.array_equal(out, want)
        import mine
        assert mine.calls == {"rotate": 4, "make_tables": 1}
        buffer = np.zeros((3, 5, 16), dtype="float32")
        assert "shares memory" in refusal(lambda: rope.apply(buffer[:2], 3, out=buffer[1:]))
        assert mine.calls["rotate"] == 4
    """)


@pytest.mark.parametrize("writes", [True, False], ids=["into outs", "copied"])
@pytest.mark.parametrize("form", ["function", "wrapped", "partial", "object"])
def test_results_are_written_by_every_kind_of_callable(packages, form, writes):
    more = """
        import functools

        def into(call, outs=None):
            calls["rotate"] += 1
            ys = _rotate.rotate(call)
            if outs is None:
                return ys
            calls["outs"] = calls.get("outs", 0) + 1
            for y, out in zip(ys, outs):
                out[...] = y

        class Called:
            def __call__(self, *args):
                return into(*args)

        @functools.wraps(into)
        def wrapped(*args, **more):
            return into(*args, **more)

        forms = {"function": into, "wrapped": wrapped, "partial": functools.partial(into), "object": Called()}
        rotate, accepts_outs = forms[FORM], WRITES
    """
    more = more.replace("FORM", repr(form)).replace("WRITES", repr(writes))
    packages.install("mine", loopback(more=more))
    packages.run(
        """
        import sys
        out = np.zeros_like(x)
        assert rope.apply(x, 3, out=out) is out
        assert np.array_equal(out, rope.apply(x, 3, backend="array-api"))
        import mine
        assert mine.calls["rotate"] == 1
        assert mine.calls.get("outs", 0) == (sys.argv[1] == "True")
        """,
        str(writes),
    )


# ---- a backend with its own array type ----

BOXES = """
    from rope_array.backend_tools import Library, Tables, make_tables_for, rotate_by

    RECORD = ("boxes", ("boxes:Box",), "boxes")
    name = "boxes"
    calls = []


    class Box:
        def __init__(self, inside):
            self.inside = inside

        dtype = property(lambda self: self.inside.dtype)
        shape = property(lambda self: self.inside.shape)
        ndim = property(lambda self: self.inside.ndim)


    class Boxes(Library):
        def __init__(self):
            super().__init__("boxes", None, implicit_device=True)

        def is_array(self, value):
            return isinstance(value, Box)

        def device(self, x):
            return None


    LIBRARY = Boxes()


    def library(x):
        return LIBRARY


    def inside(value):
        return value.inside if isinstance(value, Box) else value


    def rotate(call):
        calls.append("rotate")
        source = call.source
        if isinstance(source, Tables):
            source = Tables(source.cos.inside, source.sin.inside, source.layout)
        else:
            source = source._replace(values=inside(source.values))
        return tuple(map(Box, rotate_by(tuple(x.inside for x in call.xs), source, call.seq_axis)))


    def make_tables(source, like):
        tables = make_tables_for(source._replace(values=inside(source.values)), like.inside)
        return Box(tables.cos), Box(tables.sin)
"""


def test_a_type_that_no_library_knows(packages):
    """Box has no Array API: its backend supplies a Library, and rotates the inner array."""
    packages.install("boxes", BOXES)
    packages.run("""
        import boxes
        box = boxes.Box(x)
        want = rope.apply(x, range(5))
        both = ra.apply((box, box), range(5), rope)
        for y in (rope.apply(box, range(5)), both[1], rope.apply(box, range(5), backend="boxes")):
            assert type(y) is boxes.Box and np.array_equal(y.inside, want)
        assert boxes.calls == ["rotate"] * 3
        pos = boxes.Box(np.arange(5))
        assert np.array_equal(rope.apply(box, pos).inside, want)
        rotation = rope.rotation(pos, like=box)
        assert np.array_equal(rotation.apply(box).inside, rope.rotation(range(5), like=x).apply(x))
        explanation = ra.explain(box, 3)
        assert explanation.backend == "boxes" and not explanation.declined
        assert "boxes" not in ra.explain(x, 3).declined
        assert "NumPy, PyTorch and CuPy" in refusal(lambda: rope.apply(box, 3, out=boxes.Box(x)))
        assert "does not line up" in refusal(lambda: ra.explain(box, range(4), rope))
        assert "two libraries" in refusal(lambda: rope.apply((x, box), 3))
        assert "does not serve" in refusal(lambda: rope.apply(box, 3, backend="numpy"))
        assert "does not serve" in refusal(lambda: rope.apply(x, 3, backend="boxes"))
    """)


@pytest.mark.library("strict", "numpy")
def test_a_library_without_a_backend_of_its_own(packages):
    types_ = ("array_api_strict._array_object:Array",)
    packages.install("mine", loopback(types=types_))
    packages.run("""
        import array_api_strict as strict
        ours = strict.asarray(x)
        y = rope.apply(ours, strict.arange(5))
        import mine
        assert mine.calls["rotate"] == 1
        want = rope.apply(ours, strict.arange(5), backend="array-api")
        assert np.array_equal(np.asarray(y), np.asarray(want))
        assert ra.explain(ours, 3).backend == "mine"
        rope.apply(x, 3)
        assert mine.calls["rotate"] == 1
    """)


# ---- the shipped suite over a backend of another package ----

SUITE = """
    import sys
    from rope_array.testing import iter_checks
    from rope_array.testing._checks import subjects
    import mine

    tried, chosen = 0, [check for subject in sys.argv[2:] for check in subjects()[subject]]
    for check, run in iter_checks(sys.argv[1]):
        if not chosen or check in chosen:
            run()
            tried += 1
    assert tried > 20, tried
    assert sum(mine.calls.values()) > 200, mine.calls
    print("ok")
"""
TYPES = {
    "numpy": "numpy:ndarray",
    "torch": "torch:Tensor",
    "jax": "jax:Array",
    "array_api_strict": "array_api_strict._array_object:Array",
}


@pytest.mark.without("dask", "jax")
def test_the_suite_over_a_backend_of_another_package(lib, packages):
    packages.install("mine", loopback(types=(TYPES[lib.name],)))
    every = ("positions", "combinations") if lib.name == "numpy" else ()  # what calls a backend is the same
    subjects = sample("first calls", "kinds", "fields", *every)
    assert packages.run(SUITE, lib.name, *subjects).split() == ["ok"]


# ---- threads ----

FIRST_CALLS = """
    import sys
    from conftest import LIBS
    from threads import in_threads

    lib = LIBS[sys.argv[1]]
    x = lib.asarray(x, "float32")
    pos = lib.asarray(np.arange(5, dtype=np.int32))
    lib.to_numpy(x)
    sys.setswitchinterval(1e-6)


    def first_call(i):
        import rope_array as ra
        rope = ra.RoPE(16, pairing="half")
        made = rope.apply(x, pos), rope.rotation(pos, like=x).apply(x), ra.apply((x, x), pos, rope)[1]
        explanation = ra.explain(x, pos, rope)
        assert explanation.backend == "mine", explanation
        assert "aaa" in explanation.declined, explanation
        assert {"mine", "aaa"} <= {one.name for one in ra.backends()}
        return {lib.to_numpy(a).tobytes() for a in made}


    for _ in range(int(sys.argv[2])):
        for name in [name for name in sys.modules if name.partition(".")[0] in ("rope_array", "mine")]:
            del sys.modules[name]
        assert len(set.union(*in_threads(first_call))) == 1, "threads, or forms of the call, differ"
        assert sys.modules["mine"].calls["rotate"] >= 16
"""


@pytest.mark.without("dask", "jax")
def test_first_calls_of_eight_threads_with_a_plug_in(lib, packages):
    packages.install("mine", loopback(types=(TYPES[lib.name],)))
    packages.install("aaa", "raise RuntimeError('at import')\n")
    packages.run(FIRST_CALLS, lib.label, {"torch": "3"}.get(lib.name, "8"))
