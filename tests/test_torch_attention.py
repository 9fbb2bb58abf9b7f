"""attention_inputs on PyTorch: gradients, transforms, and programs of torch.compile and torch.export.

Eager calls are compared with a definition in float64, and programs with eager calls, bit by bit.
"""

import re

import pytest
from compare import KERNEL, normal, same
from torch_cases import IGNORED, NEEDS_COMPILER, NIGHTLY, compiled, forward_ad, module_of

import rope_array as ra
from rope_array._array_api.source import Positions, Tables
from rope_array._backends import _native

torch = pytest.importorskip("torch")
from torch import func  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

pytestmark = [pytest.mark.library("torch"), *IGNORED]
attention = pytest.importorskip("rope_array._backends.torch._attention")

WIDTH = 20
ROPE = ra.RoPE(WIDTH, rotary_dim=12, rotary_start=4, pairing="half", attention_factor=1.25)
POS = torch.tensor([7, 0, 70_000, -3, 5])
HEADS = {"q": 4, "k": 2}
WEIGHTS = {"shared": lambda heads: (WIDTH,), "of each head": lambda heads: (heads, WIDTH)}
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
by_weights = pytest.mark.parametrize("kind", WEIGHTS)
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])


def arrays(dtype=torch.float32, kind="shared", weight_dtype=None, requires_grad=True):
    """Return q and k of shape (2, 5, heads, WIDTH), and their weights."""
    of_xs = [normal("torch", 2, 5, n, WIDTH, dtype=dtype, seed=n) for n in HEADS.values()]
    shapes = [WEIGHTS[kind](n) for n in HEADS.values()]
    weights = [normal("torch", *shape, dtype=weight_dtype or dtype, seed=9) for shape in shapes]
    return [array.requires_grad_(requires_grad) for array in (*of_xs, *weights)]


def by_call(q, k, q_weight, k_weight, pos=POS, rope=ROPE, **options):
    options = {"offset": 1.0, "eps": 0.01, **options}
    return ra.attention_inputs(q, k, pos, rope, norm=(q_weight, k_weight), seq_axis=-3, **options)[:2]


def by_definition(*arrays):
    matrix = ROPE.matrix(POS, like=normal("torch", 1, dtype="float64"))  # (S, WIDTH, WIDTH)
    ys = []
    for x, weight in zip(arrays[:2], arrays[2:], strict=True):
        r = (x.square().mean(-1, keepdim=True) + 0.01) ** -0.5
        ys.append(torch.einsum("sij,...shj->...shi", matrix, x * r * (weight + 1.0)))
    return tuple(ys)


def of_ones(arrays):
    """Return gradients of results: other numbers at each place."""
    return [normal("torch", *array.shape, dtype="bfloat16", seed=5).to(array.dtype) for array in arrays]


def pulled(function, arrays, **options):
    """Return the gradients of a function of arrays that require one."""
    ys = function(*arrays)
    return torch.autograd.grad(ys, [a for a in arrays if a.requires_grad], of_ones(ys), **options)


def accumulated(function, arrays):
    """Return the gradients that backward() accumulates, which a reentrant checkpoint needs."""
    ys = function(*arrays)
    torch.autograd.backward(ys, of_ones(ys))
    return tuple(array.grad for array in arrays)


def widened(arrays):
    return [array.detach().double().requires_grad_(array.requires_grad) for array in arrays]


# ---- gradients ----


@by_dtype
@by_weights
@pytest.mark.parametrize("rounding", ["none", "steps"])
def test_gradients_are_those_of_the_definition(rounding, kind, dtype):
    """Of the map without roundings between; each is rounded once."""
    given = arrays(dtype, kind)
    gradients = pulled(lambda *given: by_call(*given, rounding=rounding), given)
    wanted = pulled(by_definition, widened(given))
    for gradient, exact in zip(gradients, wanted, strict=True):
        assert gradient.dtype == dtype
        close = {"rtol": 0.51 * torch.finfo(dtype).eps, "atol": 4e-6 if dtype != torch.float64 else 1e-13}
        assert torch.allclose(gradient.double(), exact, **close)


@by_weights
def test_gradients_twice(kind):
    given = arrays(torch.float64, kind)
    assert torch.autograd.gradcheck(by_call, given)
    assert torch.autograd.gradgradcheck(by_call, given)


FROZEN = {"q alone": [0], "the weight of k alone": [3], "the weights": [2, 3], "q and its weight": [0, 2]}


@pytest.mark.parametrize("name", FROZEN)
def test_some_arrays_without_a_gradient(name, fresh_dynamo):
    given = arrays(requires_grad=False)
    everything = pulled(by_call, arrays())
    for i in FROZEN[name]:
        given[i].requires_grad_()
    for function in (by_call, compiled(by_call)):
        ys = function(*given)
        assert [y.requires_grad for y in ys] == [any(i % 2 == j for i in FROZEN[name]) for j in range(2)]
        recorded = [y for y in ys if y.requires_grad]
        gradients = torch.autograd.grad(recorded, [given[i] for i in FROZEN[name]], of_ones(recorded))
        assert same(gradients, tuple(everything[i] for i in FROZEN[name]))


def test_one_result_without_a_gradient():
    """No array of zeros is made for it, and none of its arrays has a gradient."""
    given = arrays()
    q, _ = by_call(*given)
    gradients = torch.autograd.grad(q, given, of_ones([q])[0], allow_unused=True)
    everything = pulled(by_call, given)
    assert same(gradients[::2], everything[::2])
    assert gradients[1] is gradients[3] is None


def test_weights_of_ones_and_no_k():
    q, k, *_ = arrays()
    ones = torch.ones(WIDTH)
    call = lambda q, k: by_call(q, k, None, None, offset=0.0)  # noqa: E731
    assert same(pulled(call, [q, k]), pulled(lambda q, k: by_call(q, k, ones, ones, offset=0.0), [q, k]))
    assert same(pulled(lambda q: by_call(q, None, None, None)[:1], [q]), pulled(call, [q, k])[:1])


def in_place(*given):
    """Write into products with 1, as x may be no leaf."""
    q, k = (x * 1 for x in given[:2])
    ys = by_call(q, k, *(weight.detach() for weight in given[2:]), out=(q, k))
    assert ys[0] is q
    return ys


@KERNEL
def test_threads_of_the_kernel_change_no_bits_of_gradients(level, monkeypatch):
    _native.kernel.share_out_from(0)
    count = 30_000  # so many that the threads work at once
    xs, pos = [normal("torch", 1, count, n, WIDTH, seed=n) for n in HEADS.values()], torch.arange(count)
    leaves = [array.requires_grad_() for array in (*xs, normal("torch", WIDTH), normal("torch", 2, WIDTH))]
    gradients = []
    for threads in ("1", "4"):
        monkeypatch.setenv("ROPE_ARRAY_NUM_THREADS", threads)
        ys = by_call(*leaves, pos=pos)
        gradients.append(torch.autograd.grad(ys, leaves, of_ones(ys)))
    assert same(*gradients)


@KERNEL
@pytest.mark.parametrize("backend", [None, "native"])
def test_writes_into_caches_are_counted(backend):
    """So a backward sees that a saved cache has changed."""
    k, caches = normal("torch", 5, 2, WIDTH), (torch.zeros(8, 2, WIDTH), torch.zeros(8, 2, WIDTH))
    for count in (1, 2):  # of the calls without `backend`, the second takes the fast entry
        ra.attention_inputs(
            k, k, POS, ROPE, v=k, cache=caches, slots=torch.arange(5), seq_axis=-3, backend=backend
        )
        assert [cache._version for cache in caches] == [count, count]


@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_in_place_with_a_gradient(mode, fresh_dynamo):
    given = arrays()
    function = in_place if mode == "eager" else compiled(in_place)
    assert same(function(*given), by_call(*given))
    assert same(pulled(function, given, allow_unused=True)[:2], pulled(by_call, given)[:2])


@pytest.mark.parametrize("changed", range(4))
def test_a_saved_array_that_changes_is_seen(changed):
    given = [array * 1 for array in arrays()]
    ys = by_call(*given)
    with torch.no_grad():
        given[changed].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.backward(ys, of_ones(ys))


CONTEXTS = {
    "checkpoint": lambda *given: checkpoint(by_call, *given, use_reentrant=False),
    "reentrant checkpoint": lambda *given: checkpoint(by_call, *given, use_reentrant=True),
    "autocast": torch.autocast("cpu", torch.bfloat16)(by_call),
    "rotation": lambda *given: by_call(*given, ROPE.rotation(POS, like=given[0]), None),
    "float positions": lambda *given: by_call(*given, POS.double()),
    "a cache": lambda *given: with_caches(*given)[:2],
}


def with_caches(q, k, q_weight, k_weight, dtype=torch.bfloat16, **options):
    """Return q and k, and caches in which rows of k and of q are written."""
    caches = torch.zeros(2, 3, 4, 2, WIDTH, dtype=dtype)
    slots = torch.tensor([[3, -1, 4, 4, 9], [-1, 0, 11, 10, -1]])
    options |= {"v": q[:, :, 1:3], "cache": (caches[0], caches[1]), "slots": slots}
    return *by_call(q, k, q_weight, k_weight, **options), caches


@pytest.mark.parametrize("name", CONTEXTS)
def test_gradients_in_contexts(name):
    given = arrays()
    assert same(accumulated(CONTEXTS[name], given), pulled(by_call, given))


@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("rounding", ["none", "norm", "steps"])
def test_a_call_with_a_gradient_has_the_bits_of_one_without(rounding, mode, fresh_dynamo):
    given = arrays(torch.bfloat16)
    function = with_caches if mode == "eager" else compiled(with_caches)
    results = function(*given, rounding=rounding)
    assert results[0].requires_grad
    assert results[2].count_nonzero()
    with torch.no_grad():
        assert same(tuple(y.detach() for y in results), with_caches(*given, rounding=rounding))


# ---- transforms ----


def tangents(function, given):
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(x, t) for x, t in zip(given, of_ones(given), strict=True)]
        return tuple(forward_ad.unpack_dual(y).tangent for y in function(*duals))


def loss(function):
    def weighted(*given):
        ys = function(*given)
        return sum([(y * g).sum() for y, g in zip(ys, of_ones(ys), strict=True)])

    return weighted


def twice(function, given):
    def gradient(x):
        return func.grad(loss(function))(x, *given[1:]).sin().sum()

    return func.grad(gradient)(given[0])


def pulled_in_batches(function, given):
    given = [array.requires_grad_() for array in given]
    ys = function(*given)
    batches = [torch.stack([g, 2 * g]) for g in of_ones(ys)]
    return torch.autograd.grad(ys, given, batches, is_grads_batched=True)


def pulled_twice(function, given):
    given = [array.requires_grad_() for array in given]
    gradients = pulled(function, given, create_graph=True)
    return torch.autograd.grad([g.sin().sum() for g in gradients], given)


MAPPED = 0, 0, None, None
TRANSFORMS = {
    "grad": lambda f, given: func.grad(loss(f), (0, 1, 2, 3))(*given),
    "vjp": lambda f, given: func.vjp(f, *given)[1](tuple(of_ones(given[:2]))),
    "jvp": lambda f, given: func.jvp(f, tuple(given), tuple(of_ones(given)))[1],
    "dual numbers": tangents,
    "grad of grad": twice,
    "vmap": lambda f, given: func.vmap(f, MAPPED)(*given),
    "vmap of grad": lambda f, given: func.vmap(func.grad(loss(f), 2), MAPPED)(*given),
    "batched gradients": pulled_in_batches,
    "double backward": pulled_twice,
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_are_those_of_the_definition(name):
    given = arrays(requires_grad=False)
    transformed = tree_leaves(TRANSFORMS[name](by_call, given))
    for y, exact in zip(
        transformed, tree_leaves(TRANSFORMS[name](by_definition, widened(given))), strict=True
    ):
        assert exact.abs().max() > 0
        assert torch.allclose(y.double(), exact, atol=2e-5, rtol=1e-5)


# ---- compiled programs ----


def tokens(n, start, dtype=torch.float32):
    """Return q, k, v, positions and slots of n tokens."""
    q, k, v = (normal("torch", 2, n, heads, WIDTH, dtype=dtype, seed=heads) for heads in (4, 2, 3))
    slots = torch.arange(2 * n).view(2, n) % 7 - 1 + start % 5
    return q, k, v, torch.arange(n) + start, slots


def call_of(norm=True, write=True, k=True, tables=False, in_place=False, **options):
    """Return a function of q, k, v, positions, slots, caches and weights."""

    def call(q, k_, v, pos, slots, k_cache, v_cache, *weights):
        source = (ROPE.rotation(pos, like=q), None) if tables else (pos, ROPE)
        given = dict(options, seq_axis=-3)
        if norm:
            given |= {"norm": weights, "eps": 0.01}
        if write:
            given |= {"v": v, "cache": (k_cache, v_cache), "slots": slots}
        if in_place:
            given["out"] = q, k_
        ys = ra.attention_inputs(q, k_ if k else None, *source, **given)
        return tuple(y * 1 for y in ys[:2] if y is not None)

    return call


# By name: a call, and the dtype of its caches.
CALLS = {
    "norm": (call_of(write=False), None),
    "norm of q alone": (call_of(write=False, k=False), None),
    "norm in place": (call_of(write=False, in_place=True, rounding="steps"), None),
    "norm and cache": (call_of(rounding="norm"), torch.float32),
    "all in place": (call_of(in_place=True, rounding="steps"), torch.bfloat16),
    "by tables": (call_of(tables=True), torch.float16),
    "by tables in place": (call_of(tables=True, in_place=True, write=False), None),
    "cache": (call_of(norm=False), torch.float32),
    "rotation": (call_of(norm=False, write=False, in_place=True), None),
    "int8": (call_of(scales=(0.02, 0.03)), torch.int8),
    "e4m3": (call_of(scales=(0.02, 0.03), unique_slots=True), torch.float8_e4m3fn),
    "PyTorch's operations": (call_of(rounding="steps", backend="torch"), torch.bfloat16),
    "PyTorch's operations, e4m3": (call_of(backend="torch", in_place=True), torch.float8_e4m3fn),
}
by_compiler = pytest.mark.parametrize(
    "backend", ["aot_eager", pytest.param("inductor", marks=[pytest.mark.slow, NEEDS_COMPILER])]
)


@pytest.mark.parametrize("dynamic", [None, pytest.param(True, marks=NIGHTLY)], ids=str)
@by_compiler
@pytest.mark.parametrize("name", CALLS)
def test_programs_have_the_bits_of_eager_calls(name, backend, dynamic, fresh_dynamo):
    """Over lengths, positions and slots, by two graphs at most: of the first length, and of any."""
    from torch._dynamo.testing import CompileCounterWithBackend

    call, cache_dtype = CALLS[name]
    counter = CompileCounterWithBackend(backend)
    run = torch.compile(call, fullgraph=True, backend=counter, dynamic=dynamic)
    weights = arrays(kind="of each head", requires_grad=False)[2:]
    for n, start in [(7, 0), (6, 7), (9, 70_000), (11, 1), (17, 2)]:  # numbers that no other size is
        results = []
        for function in (call, run):
            caches = [torch.zeros(4, 5, heads, WIDTH, dtype=cache_dtype or torch.int8) for heads in (2, 3)]
            given = *tokens(n, start, torch.bfloat16), *caches
            with torch.no_grad():
                ys = function(*given, *weights)
            results.append((*ys, *given[:2], *(cache.view(torch.int8) for cache in caches)))
        assert same(*results)
    assert counter.frame_count <= 2


@by_weights
def test_programs_of_symbolic_sizes_take_weights(kind, fresh_dynamo):
    call, weights = call_of(write=False), arrays(kind=kind, requires_grad=False)[2:]
    given = *tokens(4, 7), None, None, *weights
    run = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=True)
    assert same(run(*given), call(*given))


@pytest.mark.parametrize("name", ["norm and cache", "all in place", "int8"])
def test_exported_programs_have_the_bits_of_eager_calls(name):
    """They are PyTorch's own operations, without rope_array's."""
    call, dtype = CALLS[name]
    results, weights = [], arrays(kind="of each head", requires_grad=False)[2:]
    for exported in (False, True):
        given = [*tokens(4, 7), *(torch.zeros(4, 5, n, WIDTH, dtype=dtype) for n in (2, 3)), *weights]
        function = torch.export.export(module_of(call), tuple(x.clone() for x in given)).module()
        results.append(((function if exported else call)(*given), *given))
    assert same(*map(tuple, map(tree_leaves, results)))
    assert not [node for node in function.graph.nodes if "rope_array" in str(node.target)]


def test_an_exported_cache_takes_two_tokens():
    call, weights = call_of(), arrays(kind="of each head", requires_grad=False)[2:]

    def given(n, start):
        q, k, v, pos, slots = tokens(n, start)
        caches = [torch.zeros(4, 5, heads, WIDTH) for heads in (2, 3)]
        return q[0], k[0], v[0], pos, slots[0], *caches, *weights

    shapes = ({0: torch.export.Dim("length", min=2, max=9)},) * 5 + (None, None, (None, None))
    program = torch.export.export(module_of(call), given(4, 7), dynamic_shapes=shapes).module()
    results = []
    for function in (program, call):
        arguments = given(2, 1)
        results.append((*function(*arguments), *arguments))
    assert same(*results)


@KERNEL
def test_training_is_one_operator_each_way_and_keeps_no_normed_head(fresh_dynamo):
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    graphs = []

    def keep(graph, inputs):
        graphs.append([str(node.target) for node in graph.graph.nodes if "rope_array" in str(node.target)])
        *_, output = graph.graph.nodes
        graphs[-1] += [tuple(node.meta["val"].shape) for node in output.args[0] if node is not None]
        return make_boxed_func(graph)

    given = arrays()
    ys = compiled(by_call, aot_autograd(fw_compiler=keep, bw_compiler=keep))(*given)
    torch.autograd.backward(ys, of_ones(ys))
    q, k, weight = (2, 5, 4, WIDTH), (2, 5, 2, WIDTH), (WIDTH,)
    operator = "rope_array.attention_at{}.default"
    forward, backward = graphs
    assert forward[:3] == [operator.format(""), q, k]
    assert sorted(forward[3:]) == sorted([q, k, weight, weight, (5,)])  # x, weights and positions
    assert backward[0] == operator.format("_gradients")
    assert sorted(backward[1:]) == sorted([q, k, weight, weight])


def decode(x, projection, pool, pos, slots, *weights):
    q, k, v = (x @ projection).view(1, 5, -1, WIDTH).split([4, 2, 2], 2)
    caches = pool[0], pool[1]
    options = {"v": v, "cache": caches, "slots": slots, "out": (q, k)}
    return ra.attention_inputs(q, k, pos, ROPE, norm=weights, seq_axis=-3, **options)[:2]


@pytest.mark.slow
@KERNEL
@NEEDS_COMPILER
def test_caches_and_projections_are_written_in_place(fresh_dynamo):
    """One operator, and no buffer but the projection's; the caches are views of a pool."""
    from torch._inductor.utils import run_and_get_code

    pool = torch.zeros(2, 3, 4, 2, WIDTH)
    x, projection = normal("torch", 5, 8), normal("torch", 8, 8 * WIDTH)
    given = x, projection, pool, POS, torch.tensor([[1, -1, 11, 3, 3]]), *arrays()[2:]
    with torch.no_grad():
        ys, (code,) = run_and_get_code(torch.compile(decode, fullgraph=True), *given)
        written = pool.clone()
        assert same(ys, decode(x, projection, pool.zero_(), *given[3:]))
    assert same(written, pool)
    assert re.findall(r"rope_array\.(\w+)\.default\(", code) == ["attention_at_"]
    assert re.findall(r"= empty_strided_cpu\(\(([\d, ]*)\)", code) == ["5, 160"]
    assert "cpp_fused" not in code[code.index("def call(") :]


@KERNEL
@pytest.mark.parametrize("source", ["at", "by"])
def test_the_operators_pass_pytorch_s_checks(source):
    q, k, *weights = arrays(requires_grad=False)
    cos_sin = ROPE.rotation(POS, like=q)
    by_source = Tables(*cos_sin, cos_sin.layout) if source == "by" else Positions(POS, ROPE._plan)
    operators, arguments = attention._operators_for(by_source, None)
    given = weights, 0.01, 1.0, "steps", *arguments, -3
    caches = [torch.zeros(3, 4, 2, WIDTH) for _ in range(2)]
    write = caches, k, torch.tensor([[1, -1, 11, 3, 3]] * 2), [1.0, 1.0], -3, False
    checks = {"test_utils": ["test_schema", "test_faketensor"]}
    torch.library.opcheck(operators.plain, ([q, k], *given), **checks)
    torch.library.opcheck(operators.gradients, ([q, k], [q, k], *given), **checks)
    torch.library.opcheck(operators.in_place, ([q, k], [], *given, *write), **checks)
