"""Test cases of other projects: ONNX, flash-attention, vLLM, transformers.

Nothing of theirs is copied here. ONNX installs its cases with the package. The others keep theirs in the
repository: the environment variable ROPE_ARRAY_PEER_SOURCES names a folder with clones of it.
"""

import ast
import itertools
import math
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple
from unittest import TestLoader, TestSuite

import numpy as np

import rope_array as ra

SOURCES = "ROPE_ARRAY_PEER_SOURCES"
CLONES = {
    "flash-attention": "https://github.com/Dao-AILab/flash-attention",
    "vllm": "https://github.com/vllm-project/vllm",
    "transformers": "https://github.com/huggingface/transformers",
}


class MissingSource(FileNotFoundError):
    """A repository is not cloned; the message has the command."""


class PeerCase(NamedTuple):
    """A call of `rope_array`, and the result of the other project's own reference.

    `source` is positions, or a tuple of cos and sin. `expected` is in float64 if the reference computes in
    any dtype. `tolerance` is the largest allowed difference.
    """

    name: str
    x: Any
    source: Any
    fields: dict[str, Any]
    expected: Any
    tolerance: float
    seq_axis: int = -3

    def rotate(self) -> Any:
        rope = ra.RoPE(self.x.shape[-1], **self.fields)
        if not isinstance(self.source, tuple):
            return rope.apply(self.x, self.source, seq_axis=self.seq_axis)
        return rope.rotation_from(*self.source).apply(self.x, seq_axis=self.seq_axis)


def pairing(interleaved: Any) -> str:
    return "interleaved" if interleaved else "half"


def source(repository: str, path: str) -> Path:
    """Return the path of a file in a clone; raise `MissingSource` if there is none."""
    folder = Path(os.environ.get(SOURCES) or "peer-sources", repository)
    if not (folder / path).is_file():
        raise MissingSource(
            f"no {folder / path}: git clone --depth 1 {CLONES[repository]} {folder}, and set {SOURCES} to "
            "the folder of the clones"
        )
    return folder / path


def definitions_of(path: Path, *names: str, **namespace: Any) -> dict[str, Any]:
    """Run only the named functions and assignments of a file, in `namespace`; the rest needs a GPU."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kept = [node for node in tree.body if names_of(node) & set(names)]
    exec(compile(ast.Module(kept, []), str(path), "exec"), namespace)
    return {name: namespace[name] for name in names}


def names_of(node: ast.stmt) -> set[str]:
    """Return the names that a statement defines."""
    if isinstance(node, ast.FunctionDef):
        return {node.name}
    if isinstance(node, ast.Assign):
        return {target.id for target in node.targets if isinstance(target, ast.Name)}
    return set()


# ---- ONNX ----


def onnx_cases() -> Iterator[PeerCase]:
    """Yield the node tests of RotaryEmbedding, with their own tolerance: 1e-3 of the largest result."""
    module = import_module("onnx.backend.test.case.node.rotaryembedding")
    cases: list[PeerCase] = []

    def expect(node: Any, inputs: list[Any], outputs: list[Any], name: str, **options: Any) -> None:
        """Keep a case; x is (B, H, S, D), or (B, S, H·D)."""
        attributes = {attribute.name: attribute.i for attribute in node.attribute}
        x, *tables, ids = inputs if len(inputs) == 4 else (*inputs, ...)
        heads = x if x.ndim == 4 else x.reshape(*x.shape[:2], attributes["num_heads"], -1)
        expected = np.asarray(outputs[0], np.float64).reshape(heads.shape)
        fields = {"pairing": pairing(attributes.get("interleaved"))}
        fields["rotary_dim"] = attributes.get("rotary_embedding_dim") or None
        tolerance = 1e-3 * float(np.abs(expected).max())
        source = tuple(table[ids] for table in tables)
        cases.append(PeerCase(name, heads, source, fields, expected, tolerance, -2 if x.ndim == 4 else -3))

    original, state, module.expect = module.expect, np.random.get_state(), expect  # noqa: NPY002
    try:
        np.random.seed(0)  # noqa: NPY002 (the cases are random numbers)
        for export in vars(module.RotaryEmbedding):
            if export.startswith("export"):
                getattr(module.RotaryEmbedding, export)()
    finally:
        module.expect = original
        np.random.set_state(state)  # noqa: NPY002
    yield from cases


# ---- flash-attention ----


def flash_attention_cases() -> Iterator[PeerCase]:
    """Yield the cases of test_rotary_emb_func: its sizes and parameters, judged by its PyTorch reference."""
    torch, einops = import_module("torch"), import_module("einops")
    reference = definitions_of(
        source("flash-attention", "flash_attn/layers/rotary.py"), "rotate_half", "apply_rotary_emb_torch",
        torch=torch, rearrange=einops.rearrange, repeat=einops.repeat,
    )["apply_rotary_emb_torch"]  # fmt: skip
    path = source("flash-attention", "tests/test_rotary.py")
    names = ("generate_cos_sin", "generate_seqlen_offsets", "index_cos_sin")
    functions = definitions_of(path, *names, torch=torch, math=math, rearrange=einops.rearrange)
    sizes = _local_numbers(path, "test_rotary_emb_func")
    offsets = (0, int, torch.Tensor)
    for interleaved, fraction, offset in itertools.product((False, True), (1.0, 0.5), offsets):
        torch.manual_seed(42)
        width, rows = int(fraction * sizes["headdim"]), sizes["seqlen"]
        cos, sin = functions["generate_cos_sin"](rows, width, "cpu", torch.float32)
        starts = functions["generate_seqlen_offsets"](offset, sizes["batch_size"], rows, "cpu")
        cos, sin = functions["index_cos_sin"](cos, sin, starts, rows)
        x = torch.randn(sizes["batch_size"], rows, sizes["nheads"], sizes["headdim"], requires_grad=True)
        expected = reference(x.double(), cos.double(), sin.double(), interleaved=interleaved)
        offset_name = getattr(offset, "__name__", str(offset))
        name = f"flash-attention-interleaved={interleaved}-fraction={fraction}-offset={offset_name}"
        fields = {"rotary_dim": width, "pairing": pairing(interleaved)}
        yield PeerCase(name, x, (cos, sin), fields, expected, _rounding(x))


def _local_numbers(path: Path, function: str) -> dict[str, int]:
    """Return the integers that a function of a file assigns to its local names."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (func,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    constants = [node for node in func.body if isinstance(node, ast.Assign)]
    return {
        name: node.value.value
        for node in constants
        if isinstance(node.value, ast.Constant)
        for name in names_of(node)
    }


def _rounding(x: Any) -> float:
    """Return the contract's bound for float32: 2.5 eps of the longest pair, and half an ulp of the result."""
    return 3.0 * 2.0**-23 * 2**0.5 * float(x.detach().abs().max())


# ---- vLLM ----


def vllm_cases() -> Iterator[PeerCase]:
    """Yield the cases of test_rotary_embedding, judged by vLLM's PyTorch reference with float64 tables."""
    torch = import_module("torch")
    names = ("IS_NEOX_STYLE", "HEAD_SIZES", "ROTARY_DIMS", "NUM_HEADS", "BATCH_SIZES", "SEQ_LENS")
    path = source("vllm", "tests/kernels/core/test_pos_encoding.py")
    levels = definitions_of(path, *names, torch=torch)
    path = source("vllm", "vllm/model_executor/layers/rotary_embedding/common.py")
    reference = definitions_of(path, "apply_rotary_emb_torch", torch=torch)["apply_rotary_emb_torch"]
    draw = torch.Generator().manual_seed(0)
    for neox, size, rotary_dim, heads, batch, rows in itertools.product(*(levels[name] for name in names)):
        width, rows = rotary_dim or size, min(rows, 512)  # every row is rotated alike; 8,192 take long
        pos = torch.randint(0, 8192, (batch, rows), generator=draw)
        x = torch.randn(batch, rows, heads, size, generator=draw)
        frequencies = 10_000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        angles = pos[..., None] * frequencies
        rotated = reference(x[..., :width].double(), angles.cos(), angles.sin(), neox)
        expected = torch.cat([rotated, x[..., width:].double()], -1)
        name = f"vllm-neox={neox}-{size}-{rotary_dim}-{rows}"
        fields = {"rotary_dim": width, "pairing": pairing(not neox)}
        yield PeerCase(name, x, pos, fields, expected, _rounding(x))


# ---- transformers ----


def transformers_tests() -> TestSuite:
    """Return the tests of rope parameters that compare numbers, run with this library's frequencies."""
    path = source("transformers", "tests/utils/test_modeling_rope_utils.py")
    sys.path.append(str(path.parent))
    module = import_module(path.stem)
    module.ROPE_INIT_FUNCTIONS = dict.fromkeys(module.ROPE_INIT_FUNCTIONS, _frequencies)
    names = TestLoader().getTestCaseNames(module.RopeTest)
    return TestSuite(module.RopeTest(name) for name in names if "_numerically" in name)


def _frequencies(
    config: Any, device: Any = None, seq_len: Any = None, layer_type: str | None = None, **options: Any
) -> tuple[Any, float]:
    """Return inv_freq and attention_scaling, as the functions in transformers' ROPE_INIT_FUNCTIONS do."""
    rope = ra.RoPE.from_config(config, layer_type=layer_type)
    length = int(seq_len) if seq_len else config.max_position_embeddings
    rope = rope.at_length(max(length, 1))
    inv_freq = import_module("torch").tensor(rope.frequencies, device=device)
    return inv_freq, rope.amplitude
