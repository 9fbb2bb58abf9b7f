"""Programs in ExecuTorch's runtime, by its CPU kernels, against the definition."""

import numpy as np
import pytest
import torch
from torch_cases import module_of

import rope_array as ra
from rope_array.testing import apply_definition

# Ignore warnings: pytest-xdist would import ExecuTorch's own kind of warning, which warns.
pytestmark = [pytest.mark.library("torch"), pytest.mark.filterwarnings("ignore")]

FIELDS = {"base": 500_000.0, "pairing": "half"}
ROPE = ra.RoPE(16, **FIELDS)
FAR = torch.tensor([0, 1, 4095, 2**20 - 1])
TOKENS = torch.export.Dim("tokens", max=64)
AXES = {"q": {2: TOKENS}, "k": {2: TOKENS}, "positions": {0: TOKENS}}
SHIFT = torch.ops.aten.bitwise_right_shift.Tensor_Scalar  # not in Core ATen; a kernel exists


def heads(tokens):
    random = np.random.default_rng(tokens)
    shapes = ((1, 4, tokens, 16), (1, 2, tokens, 16))
    return [torch.from_numpy(random.uniform(-1, 1, shape).astype(np.float32)) for shape in shapes]


def compiled(module, example, axes, path, *exceptions):
    """Export a module for ExecuTorch; return a function that runs it."""
    from executorch.exir import EdgeCompileConfig, to_edge  # late: importing it warns
    from executorch.runtime import Runtime

    program = torch.export.export(module, example, dynamic_shapes=axes)
    config = EdgeCompileConfig(_core_aten_ops_exception_list=[*exceptions])
    path.write_bytes(to_edge(program, compile_config=config).to_executorch().buffer)
    method = Runtime.get().load_program(path).load_method("forward")
    return lambda *inputs: method.execute(inputs)


def check(outputs, positions):
    for x, y in zip(heads(len(positions)), outputs, strict=True):
        exact = apply_definition(x.double().numpy(), positions.numpy(), **FIELDS)
        np.testing.assert_allclose(y.numpy(), exact, rtol=0, atol=2e-6)


def test_a_program_with_exact_angles(tmp_path):
    module, example = ra.torch.RotaryEmbedding(ROPE), (*heads(7), torch.arange(7))
    with pytest.raises(Exception, match=r"bitwise_right_shift.* is not in Core ATen opset"):
        compiled(module, example, AXES, tmp_path / "refused.pte")
    run = compiled(module, example, AXES, tmp_path / "program.pte", SHIFT)
    for positions in (FAR, -FAR[:2], torch.tensor([2**31 - 1, -(2**31)])):
        check(run(*heads(len(positions)), positions), positions)


def test_a_program_with_tables_as_inputs(tmp_path):
    module = module_of(lambda q, k, cos, sin: ROPE.rotation_from(cos, sin).apply((q, k)))
    axes = ({2: TOKENS}, {2: TOKENS}, {0: TOKENS}, {0: TOKENS})
    run = compiled(module, (*heads(7), *ROPE.tables(7, like=torch.ones(1))), axes, tmp_path / "program.pte")
    check(run(*heads(4), *ROPE.tables(FAR.tolist(), like=torch.ones(1))), FAR)


def test_a_program_with_tables_returns_nan_outside_of_them(tmp_path):
    module = ra.torch.RotaryEmbedding(ROPE, tables=2**20)
    run = compiled(module, (*heads(7), torch.arange(7)), AXES, tmp_path / "program.pte")
    check(run(*heads(4), FAR), FAR)
    for beyond in (2**20, -1, 2**33):
        y = run(*heads(4), torch.tensor([0, 1, beyond, 2]))[0].isnan()
        assert y[:, :, 2].all()
        assert y.sum() == y[:, :, 2].sum()
