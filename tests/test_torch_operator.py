"""The rotation in a compiled program on the CPU: one operator each way; test_inductor_offline.py has GPUs."""

import re

import pytest
from compare import judge, same
from ropes import ropes_of
from torch_cases import (
    FIELDS,
    HALF,
    IGNORED,
    LIST,
    NEEDS_COMPILER,
    NIGHTLY,
    OTHER,
    POS,
    compiled,
    forward_ad,
    normal,
)

import rope_array as ra

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.library("torch"), *IGNORED]

kernel = pytest.importorskip("rope_array._backends._native").kernel
if kernel is None:
    pytest.skip("the operator calls the C++ kernel", allow_module_level=True)
operator = pytest.importorskip("rope_array._backends.torch._compiled")
ROPES = ropes_of("plain", "features inside", "three axes", "rule")


# ---- the operators ----


def text_of(rope):
    operator.write_text(rope._plan)
    return rope._plan.derived.text


def rotate_in_place(x):
    torch.ops.rope_array.rotate_at_([x], POS, None, text_of(HALF), False, -2)


@pytest.mark.parametrize("name", ["features inside", "three axes"])
def test_the_operators_pass_pytorch_s_checks(name):
    rope, pos = ROPES[name], POS[:, None] + torch.arange(3) if name == "three axes" else POS
    _, start, stop, pairing, out_pairing, _, blocks = rope._plan.layout
    by_positions = pos, None, text_of(rope), False, -2
    by_tables = *rope.rotation(pos, like=normal(1)), start, stop, pairing, out_pairing, blocks, -2
    for op, source in (("rotate_at", by_positions), ("rotate_by", by_tables)):
        for name_of_op in (op, f"{op}_"):
            buffer = normal(2, 5, 48)
            checks = ["test_schema", "test_faketensor"]
            checks += (
                ["test_aot_dispatch_dynamic"]
                if name == "features inside" and name_of_op.endswith("_")
                else []
            )
            call = getattr(torch.ops.rope_array, name_of_op).default
            torch.library.opcheck(call, ([*buffer.split(16, -1)][:2], *source), test_utils=checks)


def test_the_operator_in_place_records_no_gradient():
    x = normal(2, 5, 16).requires_grad_()
    for tensor in (x, x * 1):
        with pytest.raises(ra.ArrayTypeError, match="records none"):
            rotate_in_place(tensor)
    with forward_ad.dual_level(), pytest.raises(ra.ArrayTypeError, match="dual number"):
        rotate_in_place(forward_ad.make_dual(x.detach(), normal(2, 5, 16)))
    assert same(x.detach(), normal(2, 5, 16))
    with torch.no_grad():
        rotate_in_place(x)
    judge(x.detach(), normal(2, 5, 16), LIST, **FIELDS["half"])


def strided_tables():
    """Return tables that the kernel cannot read: it reads copies."""
    return [table.repeat_interleave(2, -1)[..., ::2] for table in HALF.rotation(POS, like=normal(1))]


def rotate_by_tables(x, cos, sin, **options):
    return HALF.rotation_from(cos, sin).apply(x, **options)


WRITES = {
    "the operator": rotate_in_place,
    "eager": compiled(lambda x: HALF.apply(x, POS, out=x), "eager"),
    "aot_eager": compiled(lambda x: HALF.apply(x, POS, out=x)),
    "tables": lambda x: compiled(lambda x, *tables: rotate_by_tables(x, *tables, out=x))(
        x, *strided_tables()
    ),
}


@pytest.mark.parametrize("name", WRITES)
def test_autograd_sees_saved_tensors_change(name, fresh_dynamo):
    weight, x = normal(2, 5, 16).requires_grad_(), normal(2, 5, 16, seed=1)
    y = (weight * x).sum()
    WRITES[name](x)
    judge(x, normal(2, 5, 16, seed=1), LIST, **FIELDS["half"])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_one_position_of_as_many_coordinates_as_there_are_tokens(fresh_dynamo):
    """Programs do not compare the two numbers, as eager calls do, which refuse such a row."""
    x, rotate = normal(2, 3, 16), compiled(ROPES["three axes"].apply)
    assert same(rotate(x, torch.tensor([5, 9, 2])), rotate(x, torch.tensor([[5, 9, 2]])))


def test_tables_that_the_kernel_cannot_read(fresh_dynamo):
    x = normal(2, 5, 16)
    assert same(compiled(rotate_by_tables)(x, *strided_tables()), HALF.rotation(POS, like=x).apply(x))


# ---- the graphs ----


def graphs_of(function, *args):
    """Compile a function; return its forward and backward graphs."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return make_boxed_func(graph)

    ys = compiled(function, aot_autograd(fw_compiler=keep, bw_compiler=keep))(*args)
    torch.autograd.backward(ys, [torch.ones_like(y) for y in ys])
    return graphs


def operations(graph):
    names = [str(n.target).partition(".default")[0] for n in graph.graph.nodes if n.op == "call_function"]
    return [name for name in names if "getitem" not in name and name != "aten.neg"]


@pytest.mark.parametrize("source", ["positions", "rotation"])
def test_forward_and_backward_are_one_operator_and_save_no_x(source, fresh_dynamo):
    q, k = normal(2, 4, 5, 16).requires_grad_(), normal(2, 1, 5, 16).requires_grad_()
    rotation = HALF.rotation(POS, like=q)
    by = {"positions": lambda q, k: HALF.apply((q, k), POS), "rotation": lambda q, k: rotation.apply((q, k))}
    forward, backward = graphs_of(by[source], q, k)
    name = {"positions": "rope_array.rotate_at", "rotation": "rope_array.rotate_by"}[source]
    assert operations(forward) == operations(backward) == [name]
    *_, output = forward.graph.nodes
    kept = [node.meta["val"] for node in output.args[0][2:]]
    assert all(tensor.shape[-1] != 16 for tensor in kept)  # positions, or tables of 8 pairs: no q and no k
    if source == "positions":  # arrays without a gradient have an operator of their own
        _, backward = graphs_of(lambda q, k: HALF.apply((q, k), POS)[:1], q, k.detach())
        assert operations(backward) == [name]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_out_that_is_not_x_is_copied_from_the_operator_of_the_cpu(device, fresh_dynamo):
    """Other devices run PyTorch's operations."""
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph

    x, out = normal(2, 2, 5, 16).to(device)
    rotation = HALF.rotation_from(*normal(2, 5, 8).to(device))
    compiled(lambda x, out: rotation.apply(x, out=out), keep)(x, out)
    names = [str(node.target) for node in graphs[0].graph.nodes]
    assert "copy_" in names
    assert any("rope_array.rotate_by" in name for name in names) == (device == "cpu")


@pytest.mark.parametrize("how", ["apply", "inverse of a rotation"])
def test_a_module_s_rope_may_be_replaced(how, fresh_dynamo):
    """Dynamo compiles anew, and takes no plan or layout of the first rope."""

    class ExportedLayer(torch.nn.Module):
        rope = HALF

        def forward(self, x, pos):
            if how == "apply":
                return self.rope.apply(x, pos)
            return self.rope.rotation(pos, like=x).inverse().apply(x)

    module, x, pos = ExportedLayer(), normal(2, 5, 16), torch.arange(5)
    run = compiled(module)
    run(x, pos)
    for module.rope in (ROPES["rule"], ROPES["plain"], ROPES["features inside"]):
        assert same(run(x, pos), module(x, pos))


@pytest.mark.parametrize("how", ["no gradient", "gradient", "in place"])
def test_inductor_s_cpp_wrapper_is_refused(how, fresh_dynamo):
    """It would crash at the operator; PyTorch's operations are served."""
    x = normal(2, 5, 16).requires_grad_(how == "gradient")
    of = lambda x: HALF.apply(x, POS, **({"out": x} if how == "in place" else {}))  # noqa: E731
    with pytest.raises(Exception, match='give backend="torch"'):
        compiled(of, "inductor", options={"cpp_wrapper": True})(x)


# ---- the programs that Inductor makes ----


def programs_of(function, *args):
    """Return the result of a compiled function, and of each program the operators and the buffers' sizes."""
    from torch._inductor.utils import run_and_get_code

    y, programs = run_and_get_code(function, *args)
    of_operators, of_buffers = (
        r"torch\.ops\.rope_array\.(\w+)\.default\(",
        r"= empty_strided_cpu\(\(([\d, ]*)\)",
    )
    return y, [(text, re.findall(of_operators, text), re.findall(of_buffers, text)) for text in programs]


def two_layers(qkv, weight, pos, by_rotation=False):
    qkv = qkv @ weight
    xs = tuple(columns.view(5, -1, 16) for columns in qkv.split([64, 64], -1))
    for rope in (HALF, OTHER):
        if by_rotation:
            rope.rotation(pos, like=qkv).apply(xs, seq_axis=-3, out=xs)
        else:
            rope.apply(xs, pos, seq_axis=-3, out=xs)
    return qkv


def two_projections(x, of_q, of_k, pos):
    """The heads are before the tokens."""
    xs = tuple((x @ weight).view(1, 5, -1, 16).transpose(1, 2) for weight in (of_q, of_k))
    return HALF.apply(xs, pos, out=xs)


def coordinates_first(x, pos):
    ROPES["three axes"].apply(x, pos.movedim(0, -1), seq_axis=-3, out=x)


QKV = normal(5, 128), normal(128, 128, seed=1), POS
# Each program's arguments, its operators, and the sizes of its buffers: the projections, and tables.
PROGRAMS = {
    "positions": (two_layers, QKV, ["rotate_at_"] * 2, ["5, 128"]),
    "rotation": (
        lambda *args: two_layers(*args, by_rotation=True),
        QKV,
        ["rotate_by_"] * 2,
        ["5, 128", "5, 4", "5, 4", "5, 8", "5, 8"],
    ),
    "two projections": (
        two_projections,
        (normal(5, 32), normal(32, 64, seed=1), normal(32, 32, seed=2), POS),
        ["rotate_at_"],
        ["5, 32", "5, 64"],
    ),
    "coordinates": (coordinates_first, (normal(5, 4, 16), torch.arange(15).view(3, 5)), ["rotate_at_"], []),
}


@pytest.mark.slow
@NEEDS_COMPILER
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=NIGHTLY if name == "two projections" else ()) for name in PROGRAMS]
)
def test_nothing_is_copied_in_place(name, fresh_dynamo):
    """One operator for each layer, and no buffer but the projection's and the tables'."""
    function, arguments, operators, buffers = PROGRAMS[name]
    with torch.no_grad():
        _, ((program, *operators_and_buffers),) = programs_of(compiled(function, "inductor"), *arguments)
    assert operators_and_buffers[0] == operators
    assert sorted(operators_and_buffers[1]) == buffers
    assert ("cpp_fused" in program[program.index("def call(") :]) == (name == "rotation")  # makes tables
