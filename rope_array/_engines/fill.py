"""Exact values for the tables of cos and sin in a layer of an engine, written in place."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from rope_array._rope import RoPE

from .ropes import ROPES, ROPES_OF_TABLES, long_rope_at, patch_coordinates

__all__ = ["RUNS", "fill_tables", "is_filled", "rope_of_tables", "tables_of"]

# The rows of a table, in runs that follow each other: a rope, and the position of each row. In the last run
# a function from a number of rows to positions, such as `range`, is for a table that may be longer.
Runs = tuple[tuple[RoPE, Any], ...]
RunsByClass = Mapping[str, Callable[[Any], dict[str, Runs]]]
_CHUNK = 1 << 16  # rows that are computed at a time


def rope_of_tables(layer: Any) -> RoPE:
    """Return the rope of a layer whose tables can be filled."""
    name = type(layer).__name__
    return (ROPES.get(name) or ROPES_OF_TABLES[name])(layer)


def _text_runs(layer: Any) -> dict[str, Runs]:
    """Return the tables of most classes. All axes share one table, as kernels select columns by axis."""
    runs: Runs = ((replace(rope_of_tables(layer), axes=None), range),)
    return dict.fromkeys(("cos_sin_cache", "cos_sin_cache_bf16"), runs)


def _long_rope_runs(layer: Any) -> dict[str, Runs]:
    original = layer.original_max_position_embeddings
    short, long = (long_rope_at(layer, length) for length in (original, original + 1))
    return {"long_short_cos_sin_cache": ((short, range(original)), (long, range))}


def _patch_runs(layer: Any) -> dict[str, Runs]:
    return {"cos_sin_cache": ((rope_of_tables(layer), patch_coordinates(layer)),)}


def _dual_chunk_runs(layer: Any) -> dict[str, Runs]:
    """Return five tables: keys and queries of a chunk, and queries for keys of earlier chunks."""
    rope, size = rope_of_tables(layer), layer.chunk_size
    chunk = size - layer.local_size
    positions = {
        "q": range(chunk),
        "qc": [min(chunk + i, size) for i in range(chunk)],
        "k": lambda rows: [i % chunk for i in range(rows)],
        "qc_no_clamp": range(chunk, 2 * chunk),
        "q_inter": range(size, size + chunk),
    }
    return {f"cos_sin_{name}_cache": ((rope, of_rows),) for name, of_rows in positions.items()}


# By class: the tables of a layer by their names. A layer need not have all of them.
RUNS: RunsByClass = {
    **dict.fromkeys([*ROPES, *ROPES_OF_TABLES], _text_runs),
    "Phi3LongRoPEScaledRotaryEmbedding": _long_rope_runs,
    "Llama4VisionRotaryEmbedding": _patch_runs,
    "DualChunkRotaryEmbedding": _dual_chunk_runs,
}


def tables_of(layer: Any, length: int = 0, by_class: RunsByClass = RUNS) -> dict[str, tuple[Any, Runs]]:
    """Return the tables of a layer by name, with the positions of their rows, or of `length` if that is more.

    Raises ValueError if a table has another shape than the layer's class gives it.
    """
    tables = {}
    for name, (*fixed, (rope, positions)) in by_class[type(layer).__name__](layer).items():
        if (table := getattr(layer, name, None)) is None:
            continue
        first = sum(len(of_rows) for _, of_rows in fixed)
        grows = callable(positions)
        if grows:
            positions = positions(max(table.shape[0] - first, length))
        width = rope.rotary_dim // (2 if table.is_complex() else 1)
        if table.is_meta or table[0].numel() != width or not (grows or len(positions) == table.shape[0]):
            raise ValueError(f"{name} has the shape {tuple(table.shape)} on {table.device}")
        tables[name] = table, (*fixed, (rope, positions))
    if not tables:
        raise ValueError("it has no table by a known name")
    return tables


def fill_tables(layer: Any, length: int = 0, by_class: RunsByClass = RUNS) -> list[str]:
    """Write exact values into the tables of a layer, whose class `by_class` has.

    A table with fewer positions than `length` is replaced by a longer one, if its class allows it.
    Returns the names of such tables. Raises before anything is written.
    """
    longer = []
    for name, (table, runs) in tables_of(layer, length, by_class).items():
        rows = sum(len(positions) for _, positions in runs)
        if rows > table.shape[0]:
            table = table.new_empty((rows, *table.shape[1:]))
            layer.register_buffer(name, table, persistent=False)
            longer.append(name)
        for view, rope, positions in _rows_of(table, runs):
            for start in range(0, len(positions), _CHUNK):
                chunk = view[start : start + _CHUNK]
                chunk.copy_(_values(rope, positions[start : start + _CHUNK], chunk))
    return longer


def is_filled(table: Any, runs: Runs) -> bool:
    """Return whether some rows of a table are exact, but for a rounding to its dtype, or two roundings."""
    for view, rope, positions in _rows_of(table, runs):
        last = len(positions) - 1
        rows = sorted({*range(0, last, last // 16 + 1), last})
        values = _values(rope, [positions[row] for row in rows], view[rows])
        if (view[rows] - values).abs().max() > torch.finfo(table.dtype).eps / 2 * rope.amplitude:
            return False
    return True


def _rows_of(table: Any, runs: Runs) -> Iterator[tuple[Any, RoPE, Any]]:
    """Yield views of a table's rows, with their rope and their positions."""
    start = 0
    for rope, positions in runs:
        yield table[start : start + len(positions)], rope, positions
        start += len(positions)


def _values(rope: RoPE, positions: Any, rows: Any) -> Any:
    """Return exact cos and sin of positions, in the shape and the dtype of `rows`."""
    is_complex = rows.is_complex()
    real = rows.real if is_complex else rows
    format = "complex" if is_complex else "joined"
    return rope.tables(positions, format, dtype=real.dtype, like=real).view(rows.shape)
