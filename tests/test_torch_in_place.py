"""`out=` in compiled programs; test_torch_operator.py has the operator that writes."""

import pytest
from compare import judge, same
from torch_cases import (
    FIELDS,
    HALF,
    IGNORED,
    LIST,
    NEEDS_COMPILER,
    NIGHTLY,
    OTHER,
    POS,
    ROPES,
    by_compiler,
    compiled,
    judge_gradient,
    near,
    normal,
)

import rope_array as ra
from rope_array import ArrayTypeError

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.library("torch"), *IGNORED]

_native = pytest.importorskip("rope_array._backends._native")
NEEDS_KERNEL = pytest.mark.skipif(_native.kernel is None, reason="the operator calls the C++ kernel")
HEADS = 4, 2, 2  # of q, k and v


def projection(tokens=5, dtype=torch.float32, seed=0):
    """Make the output of a projection to q, k and v: (tokens, heads * 16)."""
    return normal(tokens, sum(HEADS) * 16, dtype=dtype, seed=seed)


def views_of(qkv):
    """Return q, k and v as views: (tokens, heads, 16)."""
    return tuple(part.view(-1, part.shape[-1] // 16, 16) for part in qkv.split([16 * n for n in HEADS], -1))


def rotate_in_place(xs, pos, rope=HALF, source="positions", backend=None):
    if source == "positions":
        return rope.apply(xs, pos, seq_axis=-3, out=xs, backend=backend)
    return rope.rotation(pos, like=xs[0]).apply(xs, seq_axis=-3, out=xs, backend=backend)


def judge_projection(qkv, before, pos, name="half"):
    """Assert that q and k are rotated by the definition, and v is as it was."""
    *rotated, v = views_of(qkv)
    *given, unchanged = views_of(before)
    for y, x in zip(rotated, given, strict=True):
        judge(y.transpose(0, 1), x.transpose(0, 1), pos, **FIELDS[name])
    assert same(v, unchanged)


# ---- the values ----


@by_compiler
@pytest.mark.parametrize(
    ("name", "dtype", "source"),
    [
        ("plain", torch.float32, "positions"),
        ("half", torch.bfloat16, "rotation"),
        ("partial", torch.float64, "positions"),
        ("mixed", torch.float32, "rotation"),
    ],
)
def test_views_of_one_projection(name, dtype, source, backend, fresh_dynamo):
    def layer(qkv, pos):
        q, k, _ = views_of(qkv)
        ys = rotate_in_place((q, k), pos, ROPES[name], source)
        assert ys[0] is q
        assert ys[1] is k
        return qkv + 0

    qkv, eager = projection(dtype=dtype), projection(dtype=dtype)
    y = compiled(layer, backend)(qkv, POS)
    judge_projection(qkv, projection(dtype=dtype), LIST, name)
    assert same(y, qkv)
    layer(eager, POS)
    assert same(qkv, eager)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_modes(mode, fresh_dynamo):
    with mode():
        qkv = projection()
        compiled(lambda qkv, pos: rotate_in_place(views_of(qkv)[:2], pos))(qkv, POS)
        judge_projection(qkv, projection(), LIST)


@by_compiler
def test_arguments_that_are_views_of_one_tensor(backend, fresh_dynamo):
    def layer(q, k, pos):
        rotate_in_place((q, k), pos)
        return q + k[:, :1]

    qkv = projection()
    q, k, _ = views_of(qkv)
    y = compiled(layer, backend)(q, k, POS)
    judge_projection(qkv, projection(), LIST)
    assert near(y, q + k[:, :1])


@NEEDS_KERNEL
def test_without_the_second_functionalization(fresh_dynamo):
    """vLLM compiles so: PyTorch copies q and k before the operator, and back."""
    from torch._inductor import config

    qkv = projection()
    with config.patch(enable_auto_functionalized_v2=False):
        y = compiled(lambda qkv, pos: rotate_in_place(views_of(qkv)[:2], pos)[0] + 0)(qkv, POS)
    judge_projection(qkv, projection(), LIST)
    assert same(y, views_of(qkv)[0])


@pytest.mark.parametrize(
    "backend", ["aot_eager", "eager", pytest.param("inductor", marks=[pytest.mark.slow, NEEDS_COMPILER])]
)
def test_reads_before_and_after(backend, fresh_dynamo):
    """Values that are read before the call are unrotated, through views too, until they are used."""

    def layer(qkv, pos):
        q, k, v = views_of(qkv)
        sine, copied = q.sin(), k.clone()
        rotate_in_place((q, k), pos)
        return q.cos(), sine, copied, k - copied, qkv * 2, v

    given, qkv = projection(), projection()
    cosine, sine, copied, difference, doubled, v = compiled(layer, backend)(qkv, POS)
    judge_projection(qkv, given, LIST)
    q, k, _ = views_of(qkv)
    assert near(cosine, q.cos())
    assert near(sine, views_of(given)[0].sin())
    assert same(copied, views_of(given)[1])
    assert near(difference, k - copied)
    assert same(doubled, qkv * 2)
    assert same(v, views_of(given)[2])


@by_compiler
def test_calls_in_a_row(backend, fresh_dynamo):
    """Layers with ropes of their own, the second on the result of the first, and back."""

    def layers(x, pos):
        HALF.apply(x, pos, out=x)
        OTHER.apply(x, pos, out=x)
        first = x * 1
        OTHER.apply(x, pos, out=x, inverse=True)
        return first

    x, pos = normal(2, 5, 16), torch.arange(5)
    first = compiled(layers, backend)(x, pos)
    matrix = torch.tensor(OTHER.matrix(range(5)) @ HALF.matrix(range(5)))
    want = torch.einsum("sij,bsj->bsi", matrix, normal(2, 5, 16).double())
    assert torch.allclose(first.double(), want, atol=2e-6)
    assert torch.allclose(x, HALF.apply(normal(2, 5, 16), pos), atol=2e-6)


def test_dtypes_of_their_own(fresh_dynamo):
    xs, given = ([normal(2, 5, 16), normal(5, 16, dtype=torch.float64)] for _ in range(2))
    compiled(lambda *xs: HALF.apply(xs, POS, out=xs))(*xs)
    for y, x in zip(xs, given, strict=True):
        judge(y, x, LIST, **FIELDS["half"])


def test_any_number_of_tokens(fresh_dynamo):
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("aot_eager")
    layer = compiled(lambda qkv, pos: rotate_in_place(views_of(qkv)[:2], pos), counter)
    for tokens in (7, 2, 33, 100):
        qkv, pos = projection(tokens), torch.arange(tokens) + 10**6
        torch._dynamo.mark_dynamic(qkv, 0)
        torch._dynamo.mark_dynamic(pos, 0)
        layer(qkv, pos)
        judge_projection(qkv, projection(tokens), pos)
    assert counter.frame_count == 1


MROPE = ra.RoPE(16, axes=ra.Axes.chunked(4, 2, 2), pairing="half")


@by_compiler
@pytest.mark.parametrize("shape", [(3, 2, 5), pytest.param((3, 5), marks=NIGHTLY)], ids=["batch", "tokens"])
def test_coordinates_first(shape, backend, fresh_dynamo):
    """Engines have positions of M-RoPE as (3, tokens) or (3, batch, tokens)."""
    pos = torch.randint(0, 10**6, shape)
    x = normal(*shape[1:-1], 4, 5, 16)
    given = x.clone()
    compiled(lambda x, pos: MROPE.apply(x, pos.movedim(0, -1), out=x), backend)(x, pos)
    matrix = torch.tensor(MROPE.matrix(pos.movedim(0, -1).numpy()))
    want = torch.einsum("...sij,...hsj->...hsi", matrix, given.double())
    assert torch.allclose(x.double(), want, atol=2e-6)


# ---- other memory ----


@by_compiler
def test_other_memory(backend, fresh_dynamo):
    x, cache = normal(2, 5, 16), torch.zeros(2, 9, 16)
    y = compiled(lambda x, cache: HALF.apply(x, POS, out=cache[:, 2:7]) * 1, backend)(x, cache)
    judge(cache[:, 2:7], x, LIST, **FIELDS["half"])
    assert same(x, normal(2, 5, 16))
    assert same(y, cache[:, 2:7])
    assert not cache[:, :2].any()
    assert not cache[:, 7:].any()


@by_compiler
def test_memory_that_overlaps_x_partly(backend, fresh_dynamo):
    """Eager calls refuse it. A compiled call computes the result before it writes."""
    memory = normal(5, 24)
    x, out = memory[:, :16], memory[:, 8:]
    given = x.clone()
    compiled(lambda x, out: HALF.apply(x, POS, out=out), backend)(x, out)
    judge(out, given, LIST, **FIELDS["half"])


OVERLAPS = {
    "q and k overlap": lambda qkv: (qkv[:, :16], qkv[:, 8:24]),
    "q is k": lambda qkv: (qkv[:, :16], qkv[:, :16]),
    "rows of q overlap": lambda qkv: (qkv.as_strided((5, 16), (8, 1)), qkv[:, 48:64]),
}


@NEEDS_KERNEL
@by_compiler
@pytest.mark.parametrize("name", OVERLAPS)
def test_overlaps_are_refused_when_the_program_runs(name, backend, fresh_dynamo):
    def layer(qkv, pos):
        xs = OVERLAPS[name](qkv)
        return HALF.apply(xs, pos, out=xs)

    qkv = projection()
    with pytest.raises(ArrayTypeError, match="share"):
        compiled(layer, backend)(qkv, POS)
    assert same(qkv, projection())


def onto_itself(view):
    """Return a function that rotates a view of x in place."""

    def of(x):
        y = view(x)
        return HALF.apply(y, POS, out=y)

    return of


# Each has a function of x, whether x records a gradient, and a word of the message.
REFUSED = {
    "twice": (lambda x: HALF.apply((x, x), POS, out=(x, x)), False, "given twice"),
    "expanded": (onto_itself(lambda x: x[:1].expand(2, 5, 16)), False, "share memory"),
    "shape": (lambda x: HALF.apply(x, POS, out=x[:1]), False, "out"),
    "a tuple": (lambda x: HALF.apply(x, POS, out=(x,)), False, "one array"),
    "a leaf": (onto_itself(lambda x: x), True, "a leaf"),
    "a view of a leaf": (onto_itself(lambda x: x[:1]), True, "a view of a leaf"),
    "a part of split": (onto_itself(lambda x: (x * 1).split(1)[0]), True, "split|multiple views|Split"),
    "other memory": (lambda x: HALF.apply(x * 1, POS, out=torch.zeros(2, 5, 16)), True, "would lose"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_while_compiling(name, fresh_dynamo):
    of, grad, message = REFUSED[name]
    x = normal(2, 5, 16).requires_grad_(grad)
    with pytest.raises(Exception, match=message):
        compiled(of)(x)
    assert same(x.detach(), normal(2, 5, 16))


# ---- gradients ----


IN_PLACE = {"product": lambda x: x * 1, "view": lambda x: torch.cat([x, x], -1)[..., :16]}


@by_compiler
@pytest.mark.parametrize(("name", "source"), [("product", "positions"), ("view", "rotation")])
def test_a_gradient_is_recorded(name, source, backend, fresh_dynamo):
    """Of q alone, of q and k, and of k alone."""

    def layer(q, k):
        xs = tuple(IN_PLACE[name](x) for x in (q, k))
        rotate_in_place(xs, POS, source=source)
        return xs[0] * 1, xs[1] * 1

    weight = normal(5, 2, 16, seed=2)
    for learned in ((True, False), (True, True), (False, True)):
        leaves = [normal(5, 2, 16, seed=seed).requires_grad_(learned[seed]) for seed in (0, 1)]
        ys = compiled(layer, backend)(*leaves)
        for y, leaf, needed in zip(ys, leaves, learned, strict=True):
            assert y.requires_grad == needed
            judge(y.detach().transpose(0, 1), leaf.detach().transpose(0, 1), LIST, **FIELDS["half"])
            if needed:
                (gradient,) = torch.autograd.grad(y, leaf, weight, retain_graph=True)
                judge_gradient(gradient.transpose(0, 1), weight.transpose(0, 1), LIST, "half")


def test_a_parameter_is_rotated_without_a_gradient(fresh_dynamo):
    x, weight = torch.nn.Parameter(normal(2, 5, 16)), normal(2, 5, 16, seed=1)

    def layer(x):
        with torch.no_grad():
            HALF.apply(x, POS, out=x)
        return x * weight

    y = compiled(layer)(x)
    judge(x.detach(), normal(2, 5, 16), LIST, **FIELDS["half"])
    (gradient,) = torch.autograd.grad(y, x, weight)
    assert same(gradient, weight * weight)
