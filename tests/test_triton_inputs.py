"""Attention's inputs by the Triton kernel in Triton's interpreter: bits of NumPy's operations."""

import numpy as np
import pytest
import torch
from inputs_cases import DTYPES, assert_same_memory, random_case
from triton_cases import FLOATS, normal, tiles_of_many_tokens  # before Triton is imported
from triton_mutants import INPUT_MUTANTS, installed

import rope_array as ra
import rope_array._backends.torch as backend_package
from rope_array._array_api import cache as cache_checks
from rope_array._backends._gpu import inputs as _gpu_inputs

pytestmark = pytest.mark.library("torch")
_TORCH = {**FLOATS, **{name: getattr(torch, name) for name in ("int8", "float8_e4m3fn")}}
ROPE = ra.RoPE(16, pairing="half", rotary_dim=8)


def as_tensor(view):
    """Return a tensor on the memory of an array."""
    if view.dtype.name in ("float32", "float64", "float16", "int8", "int32", "int64"):
        return torch.from_numpy(view)
    return torch.from_numpy(view.view(f"i{view.dtype.itemsize}")).view(_TORCH[view.dtype.name])


def as_array(tensor):
    """Return an array on the memory of a tensor."""
    name = str(tensor.dtype).rpartition(".")[2]
    return tensor.view(torch.int16).numpy().view(DTYPES[name]) if name == "bfloat16" else tensor.numpy()


def check(seed, **fixed):
    """Compare one random call; return whether the kernel served it."""
    module, record = backend_package._triton_inputs, []  # which a fault replaces
    function = module.attention_inputs

    def recording(*call):
        made = function(*call)
        record.append(made is not NotImplemented)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "attention_inputs", recording)
        assert_same_memory(random_case(seed, **fixed), "triton", as_tensor, as_array)
    return record == [True]


MORE = [pytest.param(seed, marks=pytest.mark.nightly) for seed in range(16, 200)]


@pytest.mark.parametrize("seed", [*range(16), *MORE])
def test_random_calls(seed):
    check(seed)
    with tiles_of_many_tokens():
        check(seed)


PLAIN = {"form": "tokens", "cache": True, "has_k": True, "has_v": True, "plain": True, "by_tables": False}
PLAIN |= {"dtype": "float32", "cache_dtype": "float32", "norm": True, "tokens": (1, 5), "heads": (3, 2)}


def test_what_engines_call_is_served():
    """Each order of tokens and heads, both orders of pages, caches of 8 bits, positions of other shapes."""
    for seed, (form, at, dtype) in enumerate(
        (("tokens", 0, "int8"), ("tokens first", 1, "float8_e4m3fn"), ("heads first", 0, "float16"))
    ):
        fixed = {"form": form, "slot_axis": at, "cache_dtype": dtype, "page": 3, "dtype": "bfloat16"}
        assert check(seed, **{**PLAIN, **fixed})
    for positions in ((2, 1), (5,)):  # with slots of shape (2, 5)
        fixed = {"form": "tokens first", "tokens": (2, 5), "positions": positions, "pos_kind": "int32"}
        assert check(0, **{**PLAIN, **fixed})


def test_views_of_one_array_in_place():
    """Q, k and v of a projection, whose heads a program reads before it writes any."""
    for pairing, out_pairing in (("half", "half"), ("interleaved", "half")):
        rope, packed = ra.RoPE(16, pairing=pairing, out_pairing=out_pairing), normal(5, 8, 16)
        results = []
        for backend in ("triton", "array-api"):
            q, k, v = packed.clone().split([4, 2, 2], dim=1)
            cache = torch.zeros(9, 2, 16), torch.zeros(9, 2, 16)
            options = dict(v=v, cache=cache, slots=torch.arange(5), norm=(None, None), seq_axis=-3)
            ra.attention_inputs(q, k, torch.arange(5), rope, out=(q, k), backend=backend, **options)
            results.append((q, k, *cache))
        assert all(map(torch.equal, *results))


def test_the_rest_of_a_key_is_written():
    for norm in (True, False):
        assert check(3, **{**PLAIN, "slice": True, "head_dim": 20, "in_place": True, "norm": norm})


def test_norms():
    """Several blocks of columns, some of them not full; each rounding; weights of each head."""
    for seed, (rounding, head_dim) in enumerate((("none", 192), ("norm", 130), ("steps", 72), ("none", 6))):
        fixed = {"cache": False, "weights": seed % 3, "weight_dtype": "float32"}
        fixed["dtype"] = "float32" if rounding == "none" else "bfloat16"
        assert check(seed, **{**PLAIN, **fixed, "head_dim": head_dim, "rounding": rounding})


def test_the_last_token_of_a_slot_is_written():
    """By a search in the kernel, and by a sort before the launch, which are in another order of tokens."""
    for limit in (512, 2):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_gpu_inputs, "MOST_SEARCHED", limit)
            for tokens in ((7, 1), (3, 4), (2, 70)):
                _check_last_tokens(tokens)


def _check_last_tokens(tokens):
    backend_package._triton_inputs._launches.clear()
    slots = torch.randint(-1, 4, tokens, generator=torch.Generator().manual_seed(tokens[1]))
    k, expected = normal(*tokens[::-1], 1, 16).transpose(0, 1), torch.zeros(9, 1, 16)
    cache = expected.clone()
    for slot, row in zip(slots.flatten().tolist(), k.reshape(-1, 1, 16), strict=True):
        if slot >= 0:
            expected[slot] = row
    options = dict(cache=(cache, None), slots=slots, seq_axis=-3, backend="triton")
    ra.attention_inputs(k, k.clone(), 0, ra.RoPE(16, rotary_dim=0), **options)
    assert torch.equal(cache, expected)
    backend_package._triton_inputs._launches.clear()


def test_only_slots_of_the_cache_are_written():
    """A GPU's slots are not read by the host, so that its checks do not refuse those beyond the cache."""
    for shape in ((8, 1, 16), (8, 1, 1, 16)):  # without pages, and with
        memory = torch.full(shape, 7.0)
        x, slots = normal(3, 1, 16), torch.tensor([-1, 4, 1])
        options = dict(v=x.clone(), cache=(memory[2:6], torch.zeros(shape)), slots=slots, seq_axis=-3)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cache_checks, "_check_range", lambda *call: None)
            _, k, _ = ra.attention_inputs(x, x.clone(), 0, ROPE, **options, backend="triton")
        expected = torch.full(shape, 7.0)
        expected[3] = k[2]
        assert torch.equal(memory, expected)


def test_calls_that_differ_in_a_number_are_other_launches():
    q = normal(1, 3, 16)
    for options in ({"eps": 0.1}, {"eps": 0.2}, {"offset": 1.0}, {"rounding": "norm"}):
        results = [
            ra.attention_inputs(q.half(), None, 0, ROPE, norm=(q[0, 0], None), backend=backend, **options)[0]
            for backend in ("triton", "array-api")
        ]
        assert torch.equal(*results)


def test_caches_beyond_32_bits_of_elements():
    """Pages and slots are 2^31 elements and more apart; an index of 32 bits would wrap to memory before."""
    far = 2**31 + 16
    memory = torch.empty(2**31 + 2 * far + 64, dtype=torch.int8)  # untouched pages take no memory
    for strides in ((far, 16, 16, 1), (16, far, 16, 1)):
        cache = memory[2**31 :].as_strided((2, 2, 1, 16), strides, 2**31)
        cache[...] = 5
        k, slots = 100 * normal(2, 1, 16), torch.tensor([1, 2], dtype=torch.int32)
        options = dict(slots=slots, seq_axis=-3, scales=(2.0, 1.0))
        small = torch.full((2, 2, 1, 16), 5, dtype=torch.int8)
        for backend, caches in (("triton", cache), ("array-api", small)):
            ra.attention_inputs(k, k.clone(), 7, ROPE, cache=(caches, None), backend=backend, **options)
        assert torch.equal(cache, small)


def cached(values, dtype, scale=1.0):
    """Return a row of values as the kernel writes it into a cache of v."""
    v = torch.cat([values, values.new_zeros(-values.numel() % 256)]).reshape(1, -1, 256)
    cache, k = torch.zeros_like(v, dtype=dtype), torch.zeros(1, 1, 16)
    options = dict(slots=torch.zeros(1, dtype=torch.int64), scales=(1.0, scale), seq_axis=-3)
    with np.errstate(all="ignore"):
        caches = torch.zeros(1, 1, 16), cache
        ra.attention_inputs(k, k.clone(), 0, ROPE, v=v, cache=caches, backend="triton", **options)
    return cache.flatten()[: values.numel()]


def test_e4m3_has_the_bits_of_pytorch():
    """Every float of 16 bits, and the numbers halfway between two of e4m3, a unit of float32 around them."""
    numbers = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    numbers = numbers[numbers.isfinite()].sort().values
    halfway = ((numbers[1:] + numbers[:-1]) / 2).view(torch.int32)
    near = torch.cat([(halfway + n).view(torch.float32) for n in (-1, 0, 1)])
    words = torch.arange(-(2**15), 2**15, dtype=torch.int16)
    for values in (near, words.view(torch.bfloat16).float(), words.view(torch.float16).float()):
        for scale in (1.0, 0.37):
            y = cached(values, torch.float8_e4m3fn, scale)
            expected = (values / torch.tensor(scale)).clamp(-448, 448).to(torch.float8_e4m3fn)
            same = y.view(torch.uint8) == expected.view(torch.uint8)
            assert bool((same | (values.isnan() & y.float().isnan())).all())


def test_int8_is_rounded_to_even_and_saturates():
    values = torch.tensor([torch.nan, 0.5, 1.5, 2.5, -0.5, -1.5, 126.5, 127.5, -128.5, -130, torch.inf])
    expected = [0, 0, 2, 2, 0, -2, 126, 127, -128, -128, 127]
    assert cached(values, torch.int8).tolist() == expected
    assert cached(3 * values, torch.int8, 3.0).tolist() == expected


def test_recorded_calls_have_the_gradients_of_operations():
    q, w = normal(2, 3, 16).requires_grad_(), normal(16).requires_grad_()
    gradients = []
    for backend in ("triton", "array-api"):
        y, _ = ra.attention_inputs(q, None, torch.arange(3), ROPE, norm=(w, None), backend=backend)
        gradients.append(torch.autograd.grad(y.square().sum(), (q, w)))
    assert all(map(torch.equal, *gradients))


@pytest.mark.parametrize("mutant", INPUT_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_is_found(mutant, monkeypatch, tmp_path):
    """Each fault, put into the sources, fails the test that it names."""
    from triton.runtime.errors import InterpreterError

    errors = (AssertionError, RuntimeWarning, InterpreterError)
    with installed(mutant, monkeypatch, tmp_path), pytest.raises(errors):
        globals()[mutant.test]()
