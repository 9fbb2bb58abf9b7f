"""Write exact tables into an ONNX file. It needs ``python -m pip install onnx``.

``from rope_array import *`` leaves the name out, which would hide the package onnx.
"""

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as _np

from . import _errors
from ._rope import RoPE as _RoPE
from ._spec import validation as _validation

__all__ = ["ReplacedTables", "write_tables"]


def __dir__() -> list[str]:
    return __all__


# The index of an operator's input cos; sin is the next. In ONNX Runtime position_ids come first.
_OPERATORS = {("", "RotaryEmbedding"): 1, ("com.microsoft", "RotaryEmbedding"): 2}
_OPERATORS |= {("com.microsoft", "MRotaryEmbedding"): 2, ("com.microsoft", "GroupQueryAttention"): 7}
_OPERATORS |= {("com.microsoft", "PagedAttention"): 8, ("com.microsoft", "SparseAttention"): 9}
_UNITS = {"float16": 2.0**-11, "bfloat16": 2.0**-8}  # the largest relative error of a rounding
_REMEDY = "export the model anew, with exact angles or tables: see the page 'Export a PyTorch model'."


class ReplacedTables(NamedTuple):
    """Tables that `write_tables` replaced, and the nodes that read them.

    The largest `error` of the numbers before was at `position`. If one array has several tables, as of
    LongRoPE, it has several `ropes`.
    """

    nodes: tuple[str, ...]
    ropes: tuple[_RoPE, ...]
    length: int
    error: float
    position: int


def write_tables(path: Any, out: Any, ropes: Any, *, length: int | None = None) -> tuple[ReplacedTables, ...]:
    """Copy an ONNX file, with exact numbers in its tables of cos and sin.

    Its tables are the constants that feed cos and sin of RotaryEmbedding (opset 23), and of ONNX Runtime's
    RotaryEmbedding, MRotaryEmbedding, GroupQueryAttention, PagedAttention and SparseAttention: directly, by
    Identity, Cast or If, in the graph or in functions of the file. They keep their dtype.

    Parameters
    ----------
    path, out : str or PathLike
        The file, and the file to write, which may be the same. If the model has data files, both are in one
        folder, as `out` reads them too.
    ropes : RoPE or sequence of RoPE
        The rope of the model, or the ropes of its layers: each table gets the rope that it agrees with. Of a
        rule that depends on the length, such as LongRoPE's, both sets of frequencies are tried.
    length : int, optional
        The rows of each table; by default as before.

    Returns
    -------
    tuple of ReplacedTables
        Each pair of tables once.

    Raises
    ------
    PatchError
        There are no such constants, one agrees with no rope at its first 256 positions or has one row or NaN,
        or `out` is not in the folder of the data files. Nothing is written then.
    SpecError
        A rope is no RoPE, or `length` no int of at least 1.

    Examples
    --------
    >>> import rope_array as ra
    >>> rope = ra.RoPE.from_config("config.json")                           # doctest: +SKIP
    >>> ra.onnx.write_tables("model.onnx", "exact.onnx", rope)[0].error     # doctest: +SKIP
    0.001953125
    """
    ropes = list(ropes) if isinstance(ropes, (list, tuple)) else [ropes]
    if not ropes or not all(isinstance(rope, _RoPE) for rope in ropes):
        raise _errors.SpecError(f"ropes is {_errors.short(ropes)}; give a RoPE, or several in a list.")
    length = None if length is None else _validation.integer("length", length, 1)
    try:
        import onnx
    except ImportError as error:
        raise ImportError(f"rope_array.onnx needs onnx ({error}): python -m pip install onnx") from error
    path, out = Path(path), Path(out)
    model: Any = onnx.load(path, load_external_data=False)
    graphs, replaced = _graphs(model), []
    written: list[tuple[Any, Any]] = []
    for nodes, tensors in _constants(graphs):
        old: list[Any] = [onnx.numpy_helper.to_array(tensor, str(path.parent)) for tensor in tensors]
        matches, new = _exact(nodes[0], old, ropes, length)
        rows = slice(min(map(len, (*old, *new))))
        errors = [abs(a[rows].astype(float) - b[rows]).max(axis=1) for a, b in zip(old, new, strict=True)]
        position = int(_np.max(errors, axis=0).argmax())
        replaced.append(ReplacedTables(nodes, matches, len(new[0]), float(_np.max(errors)), position))
        written += zip(tensors, map(onnx.numpy_helper.from_array, new), strict=True)
    for tensor, data in written:
        for field, _ in tensor.ListFields():
            if field.name not in ("name", "doc_string", "metadata_props"):
                tensor.ClearField(field.name)
        tensor.MergeFrom(data)
    for graph in graphs:
        if out.parent.resolve() != path.parent.resolve() and any(t.data_location for t in graph.tensors()):
            raise _errors.PatchError(f"{path} has data files; give an out in their folder, {path.parent}.")
        graph.state_length(length)
    partial = out.with_name(f"{out.name}.partial")
    try:
        partial.write_bytes(model.SerializeToString())
        os.replace(partial, out)
    finally:
        partial.unlink(missing_ok=True)
    return tuple(replaced)


# ---- tables ----


def _exact(node: str, old: list[Any], ropes: list[_RoPE], length: int | None) -> tuple[Any, list[Any]]:
    """Return the ropes of cos and sin, and their exact numbers.

    An array may have several tables, such as LongRoPE's two: sin is 0 in the first row of each.
    """
    cos, sin = old
    if cos.ndim != 2 or cos.shape != sin.shape or len(cos) < 2:  # one row is alike for all ropes
        raise _errors.PatchError(f"{node}: cos is {cos.shape} and sin {sin.shape}, not (length, pairs).")
    if not all(_np.isfinite(table.astype(float)).all() for table in old):
        raise _errors.PatchError(f"{node}: its tables have NaN or infinity, as marks of their end; {_REMEDY}")
    starts = [0, *(_np.flatnonzero(~sin[1:].any(axis=1)) + 1).tolist(), len(sin)]
    if length and len(starts) > 2:
        raise _errors.PatchError(f"{node}: its arrays have several tables, of rows {starts}; omit length.")
    matches = [_match(node, cos[i:j], sin[i:j], ropes) for i, j in pairwise(starts)]
    lengths = [length or j - i for i, j in pairwise(starts)]
    tables = [rope.tables(n, dtype=cos.dtype) for rope, n in zip(matches, lengths, strict=True)]
    return tuple(matches), [_np.concatenate(parts) for parts in zip(*tables, strict=True)]


def _match(node: str, cos: Any, sin: Any, ropes: list[_RoPE]) -> _RoPE:
    """Return the rope that agrees with a table. Raise PatchError if none does.

    An angle p·ω of float32 has a relative error below 2^-19: up to ln(base) roundings of the exponent of ω,
    and some more. Compared are the integers that bfloat16 has: far positions may have any error.
    """
    old = _np.stack([cos[:256], sin[:256]]).astype(float)
    unit, positions = _UNITS.get(cos.dtype.name, 2.0**-24), _np.arange(old.shape[1])[:, None]
    candidates = {rope.at_length(n): None for rope in ropes for n in (1, 1 << 30)}  # both of LongRoPE's sets
    fits = []
    for rope in (rope for rope in candidates if rope.rotary_dim == 2 * old.shape[2]):
        exact, angles = _np.stack(rope.tables(len(positions), dtype=float)), positions * rope.frequencies
        bound = unit * abs(exact) + rope.amplitude * (2.0**-19 * angles + 2.0**-22)
        error = _np.nan_to_num(abs(old - exact), nan=_np.inf)
        fits.append((rope, error, _np.argwhere((error > bound).any(axis=0)), (error / bound).max()))
    if not fits:
        widths = sorted({rope.rotary_dim // 2 for rope in ropes})
        raise _errors.PatchError(f"{node}: its tables have {old.shape[2]} pairs, and the ropes {widths}.")
    rope, error, differs = min(fits, key=lambda fit: fit[-1])[:3]
    if len(differs):
        raise _errors.PatchError(
            f"{node}: its tables differ from {rope!r}, the nearest rope, first at position {differs[0][0]}, "
            f"pair {differs[0][1]}, and by up to {error.max():.3g} at positions below {len(positions)}. Give "
            "the ropes of all layers, as RoPE.from_config reads them; rope_array.diagnose finds a rope."
        )
    return rope


# ---- the file ----


class _Graph:
    """A graph of the file, a branch of one, or the body of a function."""

    def __init__(self, body: Any, graphs: list["_Graph"], outer: "_Graph | None" = None):
        self.body, self.outer = body, outer
        self.inputs, self.outputs = ([getattr(v, "name", v) for v in vs] for vs in (body.input, body.output))
        self.initializers = {tensor.name: tensor for tensor in getattr(body, "initializer", ())}
        self.makers = {name: node for node in body.node for name in node.output}
        self.calls: list[tuple[_Graph, Any]] = []  # of a function
        self.bodies: dict[str, list[_Graph]] = {}  # of an If or a call, by the name of its first output
        self.passed: set[str] = set()  # names of tables
        graphs.append(self)
        for node in body.node:
            inner = [_Graph(a.g, graphs, self) for a in node.attribute if a.HasField("g")]
            if node.op_type == "If":
                self.bodies[node.output[0]] = inner

    def constants(self, name: str, node: str) -> Iterator[Any]:
        """Yield the tensors that a value can be, in the order of branches and calls."""
        self.passed.add(name)
        maker = self.makers.get(name)
        if name in self.initializers:
            yield self.initializers[name]
        elif name in self.inputs and self.calls:
            for graph, call in self.calls:
                yield from graph.constants(call.input[self.inputs.index(name)], node)
        elif maker is None and self.outer and name not in self.inputs:
            yield from self.outer.constants(name, node)
        elif maker is None:
            raise _errors.PatchError(f"{node}: {name!r} is an input: give it exact numbers, RoPE.tables.")
        elif maker.op_type in ("Identity", "Cast"):
            yield from self.constants(maker.input[0], node)
        elif maker.op_type == "Constant" and maker.attribute[0].HasField("t"):
            yield maker.attribute[0].t
        elif bodies := self.bodies.get(maker.output[0]):
            for body in bodies:
                yield from body.constants(body.outputs[[*maker.output].index(name)], node)
        else:
            raise _errors.PatchError(f"{node}: {name!r} is computed, by {maker.op_type}; {_REMEDY}")

    def state_length(self, length: int | None) -> None:
        """Set the length of tables where the file states it."""
        for value in (*self.body.value_info, *self.body.input, *self.body.output):
            if length is not None and getattr(value, "name", None) in self.passed:
                for size in value.type.tensor_type.shape.dim[:1]:
                    size.dim_value = length

    def tensors(self) -> list[Any]:
        attributes = (attribute.t for node in self.body.node for attribute in node.attribute)
        return [*self.initializers.values(), *attributes]


def _graphs(model: Any) -> list[_Graph]:
    """Return all graphs of a file."""
    graphs: list[_Graph] = []
    functions = {(f.domain, f.name, f.overload): _Graph(f, graphs) for f in model.functions}
    _Graph(model.graph, graphs)
    for graph in graphs:
        for node in graph.body.node:
            if function := functions.get((node.domain, node.op_type, node.overload)):
                function.calls.append((graph, node))
                graph.bodies[node.output[0]] = [function]
    return graphs


def _constants(graphs: list[_Graph]) -> list[tuple[tuple[str, ...], Any]]:
    """Return each pair of tensors cos and sin, after the names of the nodes that read it."""
    readers: dict[tuple[int, int], tuple[dict[str, None], Any]] = {}
    nodes = [(graph, node) for graph in graphs for node in graph.body.node]
    for graph, node in nodes:
        index = _OPERATORS.get((node.domain.removeprefix("ai.onnx"), node.op_type))
        names = [] if index is None else node.input[index : index + 2]
        if all(names) and names:
            label = node.name or node.output[0]
            for pair in zip(*(graph.constants(name, label) for name in names), strict=True):
                readers.setdefault((id(pair[0]), id(pair[1])), ({}, pair))[0][label] = None
    if not readers:
        computed = "; Cos and Sin compute them" * any(node.op_type == "Cos" for _, node in nodes)
        names = ", ".join(".".join(filter(None, operator)) for operator in _OPERATORS)
        raise _errors.PatchError(f"no node of {names} reads tables{computed}: {_REMEDY}")
    return [(tuple(labels), pair) for labels, pair in readers.values()]
