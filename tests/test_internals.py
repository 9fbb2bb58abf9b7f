"""Names that PyTorch, JAX and Triton do not document: one module has them, and each may be missing."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import child
import pytest
from test_imports import SOURCES

from rope_array._internals import CONSTANT_MARK, FORWARD_LEVEL, INTERNALS

FOLDERS = ("_backends.torch", "_backends.jax", "_dynamo", "hf", "torch")  # that use one of these libraries
NAMES = {name for path in INTERNALS for name in path.split(".") if name.startswith("_")} | {CONSTANT_MARK}


def test_no_other_module_has_such_names():
    assert {"_C", "_base", FORWARD_LEVEL} <= NAMES
    used = []
    for name, (text, _) in SOURCES.items():
        for node in ast.walk(ast.parse(text)) if name.startswith(FOLDERS) else ():
            if isinstance(node, ast.Attribute):
                used += [(name, node.attr)] if node.attr in NAMES else []
            elif isinstance(node, ast.Constant):
                used += [(name, node.value)] if node.value in NAMES else []
            elif isinstance(node, ast.Import | ast.ImportFrom):
                text = ast.unparse(node)
                used += [(name, text)] if re.match(r"(from|import) (torch|jax|triton)\b\S*\._", text) else []
    assert used == []


@pytest.mark.library("torch")
def test_dynamo_knows_a_constant_by_its_mark():
    torch = pytest.importorskip("torch")
    assert vars(torch.compiler.assume_constant_result(lambda: 0)) == {CONSTANT_MARK: True}


@pytest.mark.library("jax")
def test_jax_without_names():
    """Without the tables of jax.export a Rotation has no name there, and rotates as before."""
    child.run(
        """
        import jax, numpy as np
        from jax._src.export import _export
        x, pos = np.ones((2, 3, 8), np.float32), np.arange(3)
        del _export.serialization_registry, _export.deserialization_registry
        import rope_array as ra
        rope = ra.RoPE(8, base=7.0)
        rotation = rope.rotation(pos, like=jax.numpy.asarray(x))
        for y in (rotation.apply(jax.numpy.asarray(x)), jax.jit(rope.apply)(x, pos)):
            assert np.array_equal(y, rope.apply(x, pos))
        ra._rotation._release_types()
        """
    )


@pytest.mark.slow
@pytest.mark.library("torch")
@pytest.mark.skipif(sys.platform == "win32", reason="the script forks a process for each name")
def test_pytorch_without_one_name(tmp_path):
    """Removed from PyTorch itself, one at a time: each call has its result, with the same bits."""
    torch = pytest.importorskip("torch")
    names = [path for path in INTERNALS if path.startswith("torch.")]
    script = Path(__file__).parent / "internals_cases.py"
    subprocess.run([sys.executable, "-W", "ignore", script, tmp_path, *names], check=True, timeout=600)
    wanted, *results = (torch.load(tmp_path / f"{i}.pt") for i in range(len(names) + 1))
    assert len(wanted) == 25
    for name, values in zip(names, results, strict=True):
        assert len(values) > len(wanted) - 6, name  # PyTorch itself fails without some names
        for call, ys in values.items():
            assert not isinstance(ys, str), (name, call, ys)
            assert all(map(torch.equal, ys, wanted[call])), (name, call)
