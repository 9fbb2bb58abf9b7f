"""The rotation in a compiled program on the CPU: one operator each way; elsewhere one loop each way."""

import re

import child
import pytest
from compare import same
from torch_cases import HALF, IGNORED, OTHER, POS, near, normal

import rope_array as ra

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.library("torch"), *IGNORED]

kernel = pytest.importorskip("rope_array._backends._native").kernel
if kernel is None:
    pytest.skip("the operator calls the C++ kernel", allow_module_level=True)
operator = pytest.importorskip("rope_array._backends.torch._operator")

ROPES = {
    "plain": ra.RoPE(16),
    "half": HALF,
    "partial": ra.RoPE(16, rotary_dim=8, rotary_start=4, attention_factor=1.25),
    "out_pairing": ra.RoPE(16, out_pairing="half"),
    "axes": ra.RoPE(16, axes=ra.Axes.interleaved(4, 2, 2)),
    "rule": ra.RoPE(16, scaling=ra.YaRN(4.0, 64)),
}


def graphs_of(function, *args):
    """Compile a function; return its results, and the operations of its forward and backward graphs."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return make_boxed_func(graph)

    torch._dynamo.reset()
    ys = torch.compile(function, fullgraph=True, backend=aot_autograd(fw_compiler=keep, bw_compiler=keep))(
        *args
    )
    torch.autograd.backward(ys, [torch.ones_like(y) for y in ys])
    torch._dynamo.reset()
    return graphs


def operations(graph):
    return [str(n.target).partition(".default")[0] for n in graph.graph.nodes if n.op == "call_function"]


@pytest.mark.parametrize("source", ["positions", "Rotation"])
def test_forward_and_backward_are_one_operator_and_save_no_x(source):
    q, k = normal(2, 4, 5, 16).requires_grad_(), normal(2, 1, 5, 16).requires_grad_()
    pos = torch.arange(5)
    rotation = HALF.rotation(pos, like=q)
    by = (
        (lambda q, k: HALF.apply((q, k), pos))
        if source == "positions"
        else lambda q, k: rotation.apply((q, k))
    )
    forward, backward = graphs_of(by, q, k)
    name = "rope_array.rotate_at" if source == "positions" else "rope_array.rotate_by"
    assert [each for each in operations(forward) if "getitem" not in each] == [name]
    assert [each for each in operations(backward) if "getitem" not in each and each != "aten.neg"] == [name]
    *_, output = forward.graph.nodes
    kept = [node.meta["val"] for node in output.args[0][2:]]
    assert all(tensor.shape[-1] != 16 for tensor in kept)  # positions, or tables of 8 pairs: no q and no k


def test_arrays_without_a_gradient_have_their_own_operator():
    q, k = normal(2, 4, 5, 16).requires_grad_(), normal(2, 1, 5, 16)
    _, backward = graphs_of(lambda q, k: HALF.apply((q, k), POS)[:1], q, k)
    assert [each for each in operations(backward) if "getitem" not in each] == ["rope_array.rotate_at"]


LOOPS = {
    "half": ({"pairing": "half"}, torch.bfloat16),
    "interleaved": ({}, torch.float32),
    "interleaved, partial": ({"rotary_dim": 32, "rotary_start": 8}, torch.bfloat16),
    "half, partial": ({"pairing": "half", "rotary_dim": 32}, torch.float32),
}
BY_DEFAULT = ("half", "interleaved, partial")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in BY_DEFAULT else pytest.param(name, marks=pytest.mark.nightly) for name in LOOPS]
)
def test_fused_loops_without_the_operator(name):
    """As on a device that the kernel does not serve: no temporary, and tables once per position.

    The compiler joins a concatenation into the loop of its parts on every device but the CPU, unless told to.
    """
    from torch._inductor import config
    from torch._inductor.utils import run_and_get_code

    fields, dtype = LOOPS[name]
    rope, pos = ra.RoPE(64, **fields), torch.arange(40)
    q, k = (normal(1, heads, 40, 64, dtype=dtype).requires_grad_() for heads in (4, 2))
    torch._dynamo.reset()
    compiled = torch.compile(lambda q, k, pos: rope.apply((q, k), pos, backend="torch"), fullgraph=True)

    def step():
        ys = compiled(q, k, pos)
        return torch.autograd.grad(ys, (q, k), tuple(map(torch.ones_like, ys)))

    with config.patch(force_pointwise_cat=True):
        grads, programs = run_and_get_code(step)
    torch._dynamo.reset()
    assert len(programs) == 2
    for program in programs:
        assert len(re.findall(r"for\(int64_t x0=", program)) == 3  # tables, q and k
        made = re.findall(r"= empty_strided_cpu\(\(([\d, ]*)\)", program)
        assert len(made) == 4  # cos and sin, q and k
    for x, grad in zip((q, k), grads, strict=True):
        want = rope.rotation(pos, like=x).adjoint().apply(torch.ones_like(x))
        assert near(grad, want)


@pytest.mark.parametrize("inverse", [False, True], ids=["", "inverse"])
@pytest.mark.parametrize("name", ROPES)
def test_plan_text_round_trip(name, inverse):
    plan = ROPES[name]._plan
    plan = plan.inverse if inverse else plan
    operator.write_text(plan)
    assert operator._read_text(plan.text) == plan


@pytest.mark.parametrize("name", ROPES)
def test_the_operator_passes_pytorch_s_checks(name):
    rope, x = ROPES[name], normal(2, 5, 16)
    pos = POS[:, None] + torch.arange(3) if rope.axes is not None and rope is ROPES["axes"] else POS
    operator.write_text(rope._plan)
    checks = ("test_schema", "test_faketensor")
    ops = torch.ops.rope_array
    torch.library.opcheck(ops.rotate_at.default, ([x], pos, rope._plan.text, False, -2), test_utils=checks)
    _, start, stop, pairing, out_pairing, _, blocks = rope._plan.layout
    layout = start, stop, pairing, out_pairing, blocks
    cos, sin = rope.rotation(pos, like=x)
    torch.library.opcheck(ops.rotate_by.default, ([x, 2 * x], cos, sin, *layout, -2), test_utils=checks)


def test_tables_that_the_kernel_cannot_read():
    rotation, x = HALF.rotation(POS, like=normal(1)), normal(2, 5, 16)
    cos, sin = (table.repeat_interleave(2, -1)[..., ::2] for table in rotation)
    by = lambda x, cos, sin: HALF.rotation_from(cos, sin).apply(x)  # noqa: E731
    torch._dynamo.reset()
    assert same(torch.compile(by, fullgraph=True, backend="aot_eager")(x, cos, sin), rotation.apply(x))


ANOTHER_PROCESS = """
    import sys
    import torch
    import rope_array as ra

    ra.apply(torch.ones(4), 0)  # loads the backend of PyTorch
    x = torch.arange(32.0).reshape(2, 16)
    (y,) = torch.ops.rope_array.rotate_at([x], torch.tensor([3, 10**9]), sys.argv[1], False, -2)
    rope = ra.RoPE(16, base=77.0, rotary_dim=8, rotary_start=4, attention_factor=1.25)
    assert torch.equal(y, rope.apply(x, torch.tensor([3, 10**9])))
    """


def test_another_process_reads_the_text():
    operator.write_text(OTHER._plan)
    child.run(ANOTHER_PROCESS, OTHER._plan.text)


@pytest.mark.parametrize("how", ["apply", "rotation", "inverse"])
def test_a_module_s_rope_may_be_replaced(how):
    """Dynamo compiles anew, and takes no plan or layout of the first rope."""

    class Module(torch.nn.Module):
        rope = HALF

        def forward(self, x, pos):
            if how == "apply":
                return self.rope.apply(x, pos)
            rotation = self.rope.rotation(pos, like=x)
            return (rotation if how == "rotation" else rotation.inverse()).apply(x)

    torch._dynamo.reset()
    module, x, pos = Module(), normal(2, 5, 16), torch.arange(5)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    for name in ("half", "plain", "partial", "out_pairing", "rule"):
        module.rope = ROPES[name]
        assert same(compiled(x, pos), module(x, pos))
    torch._dynamo.reset()


LOADED = """
    import sys
    import torch
    import rope_array as ra

    x = torch.load(sys.argv[2])
    rope = ra.RoPE(16, base=77.0, rotary_dim=8, rotary_start=4, attention_factor=1.25)
    rotation = rope.rotation(range(5), like=x)
    program = torch.export.load(sys.argv[1])
    assert torch.allclose(program.module()(x, rotation), rotation.apply(x), atol=1e-6)
    """


def test_a_saved_program_with_a_rotation_among_its_inputs(tmp_path):
    class Module(torch.nn.Module):
        def forward(self, x, rotation):
            return rotation.apply(x)

    x = normal(2, 5, 16)
    program = torch.export.export(Module(), (x, OTHER.rotation(range(5), like=x)))
    torch.export.save(program, tmp_path / "program.pt2")
    torch.save(x, tmp_path / "x.pt")
    child.run(LOADED, str(tmp_path / "program.pt2"), str(tmp_path / "x.pt"))


@pytest.mark.parametrize("grad", [False, True], ids=["no gradient", "gradient"])
def test_inductor_s_cpp_wrapper_is_refused(grad):
    """It would crash at the operator; PyTorch's operations are served."""
    x = normal(2, 5, 16).requires_grad_(grad)
    options = {"cpp_wrapper": True}
    torch._dynamo.reset()
    with pytest.raises(Exception, match='give backend="torch"'):
        torch.compile(lambda x: HALF.apply(x, POS), options=options, fullgraph=True)(x)
    torch._dynamo.reset()
