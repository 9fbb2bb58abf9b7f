"""Calls of the backend "cuda" on fake_cupy's arrays, each compared with NumPy's array-api backend bit by bit.

A case takes the compiled kernel, and so can be run on one with a fault: see cuda_mutants.py.
"""

import functools
import importlib
import itertools
import mmap

import fake_cupy
import numpy as np
from compare import assert_same
from inputs_cases import DTYPES, assert_same_memory, random_case
from native_cases import F16, F32, F64, SEVERAL, SPECS, B, RoPE, copied, normal, spaced

import rope_array as ra

CASES = {}
FAR = np.array([0, 1, -7, 123_456_789, 2**40])


def case(function):
    """Register a case of the kernel."""
    CASES[function.__name__] = function
    return function


def of_each_dtype(function):
    """Register a case for each dtype, under names such as float32_specs."""
    for name, dtype in {"float32": F32, "float64": F64, "float16": F16, "bfloat16": B}.items():
        CASES[f"{name}_{function.__name__}"] = functools.partial(function, dtype=dtype)


def on_device(x):
    """Copy NumPy arrays to the device; other values are returned as they are."""
    if type(x) is tuple:
        return tuple(map(on_device, x))
    return fake_cupy.asarray(x) if isinstance(x, np.ndarray) else x


def same_memory(x):
    """Make an array on the device of an array's own memory and strides."""
    return tuple(map(same_memory, x)) if type(x) is tuple else fake_cupy.ndarray(x)


def same(y, expected, call_text=""):
    assert_same(fake_cupy.unwrapped(y), expected, call_text)
    fake_cupy.check_guards()


def check(rope, x, pos, call_text="", move=on_device, **kwargs):
    """Compare new results, given results and results in place, rotated and rotated back."""
    values = copied(x)
    for inverse in (False, True):
        expected = rope.apply(x, pos, backend="array-api", inverse=inverse, **kwargs)
        call = {**kwargs, "inverse": inverse, "backend": "cuda"}
        same(rope.apply(move(x), on_device(pos), **call), expected, call_text)
        out = move(x)
        same(rope.apply(on_device(values), on_device(pos), out=out, **call), expected, f"{call_text}, out")
        write(x, values)
        y = move(x)
        same(rope.apply(y, on_device(pos), out=y, **call), expected, f"{call_text}, in place")
        write(x, values)


def write(x, values):
    if type(x) is tuple:
        for array, of_one in zip(x, values, strict=True):
            write(array, of_one)
    else:
        x[...] = values


@of_each_dtype
def specs(kernel, dtype):
    for name, rope in SPECS.items():
        x = normal((2, 3, 5, rope.head_dim), dtype)
        x[0, 1, 2, 0], x[1, 2, 3, -1], x[1, 0, 0, -1] = np.nan, np.inf, -np.inf
        check(rope, x, FAR, name)


@of_each_dtype
def coordinates(kernel, dtype):
    pos = np.random.default_rng(4).integers(-(2**40), 2**40, (2, 5, 3))
    for name, rope in SEVERAL.items():
        for positions in (pos, pos[:1].astype("i4")):
            check(rope, normal((2, 3, 5, rope.head_dim), dtype), positions, name)


@of_each_dtype
def wide(kernel, dtype):
    """Accesses of whole units of 16 bytes, with features before and after the slice."""
    for pairing, out_pairing in itertools.product(("interleaved", "half"), repeat=2):
        fields = {"pairing": pairing, "out_pairing": out_pairing, "attention_factor": 1.3}
        rope = RoPE(64, rotary_dim=32, rotary_start=16, **fields)
        kernel.launches.clear()
        check(rope, normal((2, 9, 5, 64), dtype), range(3, 8), f"{pairing} {out_pairing}")
        assert all(launch[1] for launch in kernel.launches)


@case
def single_elements(kernel):
    """Addresses, strides and widths that are no multiples of 16 bytes."""
    x = normal((2, 3, 5, 64))
    changes = [spaced, np.asfortranarray, lambda x: x[:, :, :, ::-1], lambda x: x[..., 1:33]]
    for change, name in itertools.product(changes, ("half", "interleaved to half", "offset slice")):
        rope = RoPE(32 if change is changes[-1] else 64, pairing=SPECS[name].pairing)
        kernel.launches.clear()
        check(rope, change(x), FAR, name, move=same_memory)
        assert not kernel.launches[0][1]


@case
def strides_of_axes(kernel):
    for axes in itertools.permutations(range(3)):
        x = normal((2, 7, 5, 16)).transpose(*axes, 3)
        for pos in (FAR, np.arange(70).reshape(2, 7, 5)):
            shape = pos.shape if pos.ndim == 1 else tuple(np.array(pos.shape)[list(axes)])
            pos = np.arange(x.shape[2]) if pos.ndim == 1 else np.resize(pos, shape)
            check(RoPE(16), x, pos, f"{axes} {pos.shape}", move=same_memory)
    x = np.broadcast_to(normal((5, 16)), (3, 5, 16))
    same(RoPE(16).apply(same_memory(x), on_device(FAR), backend="cuda"), RoPE(16).apply(x, FAR))
    check(RoPE(16), normal((3, 10, 16))[:, ::-2], FAR, move=same_memory)


@case
def shapes_of_positions(kernel):
    x = normal((2, 3, 5, 6))
    for shape in ((), (1,), (5,), (1, 5), (2, 5), (2, 1), (2, 3, 5), (1, 3, 1), (2, 1, 5)):
        pos = np.random.default_rng(2).integers(-1000, 1000, shape)
        check(RoPE(6), x, pos, shape)
        check(RoPE(6), x, pos.astype("i4"), shape)
    check(RoPE(6), np.swapaxes(x, 1, 2), np.arange(10).reshape(2, 5), seq_axis=-3)
    check(RoPE(6), x, np.arange(20)[::-4])
    check(RoPE(6), normal((2, 3, 2, 5, 6)), np.arange(20).reshape(2, 1, 2, 5))


@of_each_dtype
def python_positions(kernel, dtype):
    ends = (range(2**63 - 5, 2**63), range(-(2**63), -(2**63) + 5))
    steps = (range(-3, 2), range(4, -1, -1), range(-(2**62), 2**62, 2**61 - 2**59))
    for pos in (0, 7, -(2**63), 2**63 - 1, [3, 1, -4, 1, 5], [[2]], *ends, *steps):
        length = len(pos) if type(pos) is range else 5
        check(RoPE(6), normal((2, 3, length, 6), dtype), pos, pos)
    check(RoPE(8), normal((3, 1, 8), dtype), range(9, 10))
    check(RoPE(8), normal((8,), dtype), 9)


@case
def other_angles(kernel):
    x = normal((2, 3, 5, 16))
    floats = np.linspace(-9, 9, 10, dtype="f4").reshape(2, 5)
    for pos in (2.5, [0.5, 1, 2, 3, 1e6], floats, floats[0]):
        check(RoPE(16, attention_factor=1.1), x, pos)
    kernel.launches.clear()
    # Float positions become tables if the kernel cannot round the fractions of turns.
    for fields in ({"angles": "float32"}, {"inv_freq": (1e8,) * 8}):
        for pos in (np.arange(1000, 1005), floats):
            check(RoPE(16, pairing="half", **fields), x, pos)
    assert {launch[2] for launch in kernel.launches} == {"rope::Int"}
    for dtype in ("int8", "int16", "uint8", "uint16", "uint32"):
        check(RoPE(16), x, np.arange(100, 105).astype(dtype), dtype)


@of_each_dtype
def float_positions(kernel, dtype):
    """Halves, NaN, a number that a sum with 2^23 would round, large numbers; several turns in a fraction."""
    several = np.random.default_rng(4).normal(0, 1e5, (2, 5, 3))
    calls = [(rope, several) for rope in SEVERAL.values()]
    fast = RoPE(16, inv_freq=(300.0, 40.0, 20.0, 7.0, 3.0, 1.0, 0.5, 0.01), pairing="half")
    for rope in (fast, *(SPECS[name] for name in ("half to interleaved", "offset slice", "amplitude"))):
        calls.append((rope, np.array([0.5, -2.5, np.nan, 2**24 - 1, -(2.0**40)])))
    for number, pos_dtype in (("float", "f4"), ("double", "f8")):
        kernel.launches.clear()
        for rope, pos in calls:
            check(rope, normal((2, 3, 5, rope.head_dim), dtype), pos.astype(pos_dtype), rope)
        assert {launch[2] for launch in kernel.launches} == {number}


def padded(table):
    """Return a table whose rows have other numbers between them."""
    return np.concatenate([table, table], axis=-1)[..., : table.shape[-1]]


@case
def tables(kernel):
    x = normal((2, 3, 5, 16))
    for pairing, shape in itertools.product(("half", "interleaved"), ((5,), (2, 5), (2, 3, 5), ())):
        pos = np.random.default_rng(4).integers(-999, 999, shape)
        rotation = RoPE(16, pairing=pairing, attention_factor=1.3).rotation(pos, like=x)
        for form in (rotation, rotation.inverse(), rotation.adjoint()):
            for change in (lambda t: t, np.asfortranarray, spaced, np.flip, padded):
                changed = form._replace(cos=form.cos, sin=change(form.sin))
                expected = changed.apply(x, backend="array-api")
                moved = changed._replace(cos=on_device(changed.cos), sin=same_memory(changed.sin))
                same(moved.apply(on_device(x), backend="cuda"), expected, f"{pairing} {shape}")


@case
def two_arrays(kernel):
    """q and k in one launch, with other numbers of heads and other strides."""
    for heads in ((4, 2), (9, 1), (1, 3), (17, 16)):
        q, k = (normal((2, h, 5, 16), seed=h) for h in heads)
        kernel.launches.clear()
        check(RoPE(16, pairing="half"), (q, k), FAR, heads)
        assert len(kernel.launches) == 6
    sizes_and_dtypes = ((1, F32), (2, F16), (3, F32), (1, F64), (2, F32), (0, F32))
    check(RoPE(16), tuple(normal((2, h, 5, 16), dtype, h) for h, dtype in sizes_and_dtypes), FAR)
    apart = normal((2, 5, 3, 16)).swapaxes(1, 2), normal((2, 1, 5, 32))[..., ::2]
    check(RoPE(16), apart, FAR, move=same_memory)


@case
def many_rows(kernel):
    """Several blocks along each axis of the grid."""
    check(RoPE(4), normal((1000, 3, 4)), range(3))
    check(RoPE(4), normal((3, 1000, 4)), range(1000))
    check(RoPE(300), normal((3, 7, 300)), range(7))
    check(RoPE(2), normal((70_000, 2)), 5)
    check(RoPE(64, pairing="half"), normal((2, 3, 301, 64)), np.arange(602).reshape(2, 301))


@case
def wide_heads(kernel):
    for width in (1024, 1030):
        check(RoPE(width, pairing="half"), normal((2, 3, width)), range(3))
        check(RoPE(width, rotary_dim=6), normal((2, 3, width)), range(3))


@case
def rounding_to_16_bits(kernel):
    """Ties, subnormal numbers, and NaN of every kind: a GPU's own is 0x7FFFFFFF."""
    words = np.random.default_rng(5).integers(0, 2**32, 100_000).astype("u4")
    near = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], "u4")
    halves = (np.arange(2**16, dtype="u4") << 16)[:, None] + near
    ties = (np.arange(2**19, dtype="u4") << 13)[:, None] + np.array([0xFFF, 0x1000, 0x1001], "u4")
    for numbers in (bits.ravel().view("f4") for bits in (words, halves, ties)):
        for dtype in (F16, B):
            low, high = kernel.narrow(np.ascontiguousarray(numbers), dtype.name)
            assert_same(low.view(dtype), numbers.astype(dtype), dtype.name)
            assert_same(high.view(dtype), (-numbers).astype(dtype), dtype.name)


@case
def every_number_of_16_bits(kernel):
    for dtype, pos in itertools.product((F16, B), (0, 1)):
        check(RoPE(16), np.arange(2**16, dtype="u2").view(dtype).reshape(-1, 1, 16), pos)


@case
def indices_beyond_32_bits(kernel):
    """Offsets of 2^31 elements and more, in a map of memory of which a few pages are touched."""
    far, start = 2**31 + 16, 2**32
    memory = mmap.mmap(-1, 2 * (start + 2 * far) + 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
    all_of_it = np.frombuffer(memory, F16)
    values = normal((3, 2, 3, 8), F16)
    for strides in ((far, 24, 8), (24, far, 8), (8, 24, far), (16, 8, far)):
        steps = [2 * stride for stride in (*strides, 1)]
        view = np.lib.stride_tricks.as_strided(all_of_it[start:], (3, 2, 3, 8), steps)
        view[...] = values
        x = fake_cupy.ndarray(view)
        for pos in (np.arange(9).reshape(3, 3), np.arange(3)):
            expected = RoPE(8).apply(values, pos, backend="array-api")
            same(RoPE(8).apply(x, on_device(pos), backend="cuda"), expected, "x")
            same(RoPE(8).apply(x, on_device(pos), out=x, backend="cuda"), expected, "x and y")
            view[...] = values
        view[...] = 0
    del view, x, all_of_it
    memory.close()


# ---- attention's inputs ----

ALL_SERVED = {"cache": True, "has_k": True}


def check_inputs(seed, **fixed):
    """Compare a random call of attention_inputs."""
    case = random_case(seed, **{**ALL_SERVED, **fixed})
    assert_same_memory(case, "cuda", fake_cupy.ndarray, lambda y: y.host)
    fake_cupy.check_guards()


@of_each_dtype
def inputs(kernel, dtype):
    """Random calls: strides, norms, slots, pages, caches of each dtype; wide accesses too."""
    kernel.launches.clear()
    for seed in range(14):
        check_inputs(seed, dtype=dtype.name)
    wide = {"plain": True, "head_dim": 192, "slice": False, "form": "tokens", "by_tables": False}
    for seed, rounding in enumerate(("none", "norm", "steps")):
        check_inputs(seed, **wide, dtype=dtype.name, norm=True, rounding=rounding, weights=1)
        assert kernel.launches[-1][1]
    check_inputs(0, **{**wide, "head_dim": 20}, dtype=dtype.name, norm=False, in_place=True)
    assert {launch[2] for launch in kernel.launches} == {"inputs"}


@case
def inputs_of_each_slot(kernel):
    """The last token of a slot is written, in another order of tokens; none below 0, or beyond the cache."""
    launch = importlib.import_module("rope_array._backends.cupy._inputs")
    for most, tokens in ((512, (3, 4)), (512, (2, 70)), (2, (3, 4))):
        launch.MOST_SEARCHED = most
        launch._prepared.clear()
        slots = np.random.default_rng(tokens[1]).integers(-1, 4, tokens)
        k = normal((*tokens[::-1], 1, 16)).swapaxes(0, 1)
        memory = np.full((9, 1, 16), 7, F32)
        expected = memory.copy()
        for slot, row in zip(slots.ravel(), k.reshape(-1, 1, 16), strict=True):
            if slot >= 0:
                expected[2 + slot] = row
        x, cache = fake_cupy.ndarray(k), fake_cupy.ndarray(memory[2:7])
        options = dict(cache=(cache, None), slots=fake_cupy.asarray(slots), seq_axis=-3, backend="cuda")
        ra.attention_inputs(x, x.copy(), 0, RoPE(16, rotary_dim=0), **options)
        assert_same(memory, expected)
        options["slots"] = fake_cupy.asarray(np.full(tokens, 5))
        ra.attention_inputs(x, x.copy(), 0, RoPE(16, rotary_dim=0), **options)  # only a host checks its slots
        assert_same(memory, expected)
    launch.MOST_SEARCHED = 512


@case
def inputs_of_8_bits(kernel):
    """Every float of 16 bits, and floats around those halfway between two numbers of the cache."""
    words = np.arange(2**16, dtype="u2")
    halfway = np.concatenate([np.arange(-300, 300) / 2, np.arange(-2048, 2048) / 4096])
    near = np.concatenate([np.nextafter(halfway.astype(F32), F32.type(to)) for to in (-1e9, 0, 1e9)])
    numbers = np.concatenate([words.view(F16).astype(F32), words.view(B).astype(F32), near])
    v = np.resize(numbers, (1, len(numbers) // 256 + 1, 256))
    x, slots = np.zeros((1, 1, 16), F32), np.zeros(1, "i8")
    for name, scale in (("int8", 1.0), ("int8", 0.37), ("float8_e4m3fn", 1.0), ("float8_e4m3fn", 0.37)):
        caches = []
        for backend, move in (("array-api", copied), ("cuda", on_device)):
            cache = move(np.zeros((1, 1, 16), F32)), move(np.zeros(v.shape, DTYPES[name]))
            options = dict(v=move(v), slots=move(slots), scales=(1.0, scale), seq_axis=-3, backend=backend)
            ra.attention_inputs(move(x), move(x), 0, RoPE(16), cache=cache, **options)
            caches.append(cache[1])
        same(caches[1], caches[0], name)


@case
def inputs_beyond_32_bits(kernel):
    """Pages and slots of a cache that are 2^31 elements and more apart."""
    far, start = 2**31 + 16, 2**31
    memory = mmap.mmap(-1, start + 2 * far + 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
    all_of_it = np.frombuffer(memory, np.int8)
    x, slots = 100 * normal((2, 1, 16)), np.array([1, 2], "i4")
    for strides in ((far, 16, 16, 1), (16, far, 16, 1)):
        view = np.lib.stride_tricks.as_strided(all_of_it[start:], (2, 2, 1, 16), strides)
        small = np.zeros((2, 2, 1, 16), np.int8)
        options = dict(seq_axis=-3, scales=(2.0, 1.0))
        ra.attention_inputs(x, x.copy(), 7, RoPE(16), cache=(small, None), slots=slots, **options)
        moved, options["slots"] = fake_cupy.asarray(x), fake_cupy.asarray(slots)
        cache = fake_cupy.ndarray(view), None
        ra.attention_inputs(moved, moved.copy(), 7, RoPE(16), cache=cache, backend="cuda", **options)
        same(cache[0], small)
        view[...] = 0
    del view, cache, all_of_it
    memory.close()
