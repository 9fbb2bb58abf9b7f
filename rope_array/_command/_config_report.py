"""A model's rotary embedding in words and tables, read from its config."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import isfinite, pi
from typing import Any

import rope_array as ra
from rope_array._command._output import hanging
from rope_array._errors import ranges
from rope_array.config import Reading, read, read_layers

_ROWS = 8  # pairs in the table of frequencies


def report(config: str, part: str | None, layer_type: str | int | None, length: int | None) -> Iterator[str]:
    """Yield the lines of the report on a config.

    Raises
    ------
    ConfigError, SpecError
        The config cannot be read, or a number is out of range.
    """
    if layer_type is None:
        groups = read_layers(config, part=part)
    else:
        groups = (((), read(config, part=part, layer_type=layer_type)),)
    first = groups[0][1]
    where = f", part {first.part}" if first.part else ""
    model_type = first.model_type or first.inferred.get("format") or "no model_type"
    yield f"{config}: {model_type}{where}"
    if len(groups) > 1:
        yield from hanging("", f"The layers differ: the model has {len(groups)} rotary embeddings.")
    for indices, reading in groups:
        yield ""
        yield from _layers(indices, sum(len(layers) for layers, _ in groups), layer_type)
        yield from _of_rope(reading, length)
    yield from _origins([reading for _, reading in groups])


def _layers(indices: tuple[int, ...], count: int, layer_type: str | int | None) -> list[str]:
    """Return the line that names the layers of a rope."""
    if layer_type is not None:
        return hanging("", f"Layer type {layer_type}:")
    if not indices:
        return []
    if len(indices) == count:
        return hanging("", f"All {count} layers share one rotary embedding.")
    return hanging(
        "", f"Layer{'s' if len(indices) > 1 else ''} {ranges(indices)} ({len(indices)} of {count}):"
    )


def _of_rope(reading: Reading, length: int | None) -> Iterator[str]:
    rope = reading.rope if length is None else reading.rope.at_length(length)
    yield from hanging("", " ".join(_sentences(rope, reading)))
    if rope.rotary_dim:
        yield ""
        yield from hanging("  RoPE(", repr(rope).removeprefix("RoPE("))
        yield from _frequency_table(rope, reading.context)


# Words


def _sentences(rope: ra.RoPE, reading: Reading) -> Iterator[str]:
    if not rope.rotary_dim:
        why = ", ".join(_notes(reading, "unrotated")) or "no rotation"
        yield f"Heads of {rope.head_dim} features stay as they are: {why}."
        return
    yield _slice_sentence(rope)
    yield _pairing_sentence(rope)
    if rope.axes is not None:
        yield _axes_sentence(rope.axes)
    yield from _frequency_sentences(rope)
    if rope.scaling is None or rope.scaling.resolved:
        yield _wavelength_sentence(rope, reading.context)


def _frequency_sentences(rope: ra.RoPE) -> Iterator[str]:
    if rope.inv_freq is not None:
        yield "The frequencies are listed one by one: a base and a rule, if stated, are in them already."
    elif rope.scaling is None:
        yield f"The base is {_number(rope.base)}, and no rule changes the frequencies."
    elif not rope.scaling.resolved:
        yield f"The base is {_number(rope.base)}."
        yield f"{type(rope.scaling).__name__} depends on the length of the sequence: give --length."
        return
    else:
        yield _rule_sentence(rope)
    if any(omega < 0 for omega in rope.frequencies):
        yield "The pairs rotate in the other direction, by negative angles."
    if rope.amplitude != 1:
        yield f"cos and sin are multiplied by the amplitude {_number(rope.amplitude)}."


def _slice_sentence(rope: ra.RoPE) -> str:
    if rope.rotary_dim == rope.head_dim:
        return f"All {rope.head_dim} features of a head are rotated, in {rope.rotary_dim // 2} pairs."
    last = rope.rotary_start + rope.rotary_dim - 1
    return (
        f"Of the {rope.head_dim} features of a head, {rope.rotary_dim} are rotated, {rope.rotary_start} to "
        f"{last}, in {rope.rotary_dim // 2} pairs."
    )


def _pairing_sentence(rope: ra.RoPE) -> str:
    text = f"Pair i is {_pairing(rope.pairing, rope)} (pairing {rope.pairing!r})"
    if rope.out_pairing:
        text += f"; in the result it is {_pairing(rope.out_pairing, rope)} ({rope.out_pairing!r})"
    return f"{text}{', counted from the first rotated feature' if rope.rotary_start else ''}."


def _pairing(pairing: str, rope: ra.RoPE) -> str:
    if pairing == "interleaved":
        return "features 2i and 2i + 1"
    blocks = rope.axes.blocks if rope.axes else 1
    return f"features i and i + {rope.rotary_dim // 2 // blocks}"


def _axes_sentence(axes: ra.Axes) -> str:
    counts = [f"{axes.coordinates.count(a)} pairs follow coordinate {a}" for a in range(axes.count or 1)]
    if None in axes.coordinates:
        counts.append(f"{axes.coordinates.count(None)} pairs are not rotated")
    return f"A position has {axes.count} coordinates: {', '.join(counts)}."


def _rule_sentence(rope: ra.RoPE) -> str:
    ratios = [ratio for ratio in _divisors(rope) if ratio is not None]
    largest = max(ratios, default=1.0)
    kept = sum(_close(ratio, 1.0) for ratio in ratios)
    full = 0 if _close(largest, 1.0) else sum(_close(ratio, largest) for ratio in ratios)
    verb, by = ("divides", largest) if largest > 1 else ("multiplies", 1 / largest)
    partial, still = len(ratios) - kept - full, len(rope.frequencies) - len(ratios)
    effects = [
        f"keeps the frequency of {_pairs(kept)}" if kept else "",
        f"{verb} the frequency of {_pairs(full)} by {_number(by)}" if full else "",
        f"changes the frequency of {_pairs(partial)} by other factors" if partial else "",
        f"stops {_pairs(still)}" if still else "",
    ]
    clauses = ", ".join(filter(None, effects))
    return f"The base is {_number(rope.base)}. {type(rope.scaling).__name__} {clauses}."


def _pairs(count: int) -> str:
    return "1 pair" if count == 1 else f"{count} pairs"


def _divisors(rope: ra.RoPE) -> list[float | None]:
    """Return by how much a rule divides each frequency; None for pairs that do not rotate."""
    before = replace(rope, scaling=None).frequencies
    frequencies = zip(before, rope.frequencies, strict=True)
    return [abs(old / new) if new and old else None for old, new in frequencies]


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-6 * abs(b)


def _wavelength_sentence(rope: ra.RoPE, context: int | None) -> str:
    lengths = [length for length in _wavelengths(rope.frequencies) if isfinite(length)]
    if not lengths:
        return "No pair rotates: all frequencies are 0."
    text = f"The wavelengths are {_number(min(lengths))} to {_number(max(lengths))} positions."
    if context is None:
        return f"{text} The config states no context length to compare with."
    longer = sum(length > context for length in lengths)
    if not longer:
        return f"{text} In a context of {context:,} positions every pair rotates more than once."
    return f"{text} {_pairs(longer)} never rotate once in a context of {context:,} positions."


def _wavelengths(frequencies: Iterable[float]) -> list[float]:
    return [2 * pi / abs(omega) if omega else float("inf") for omega in frequencies]


def _number(value: float) -> str:
    """Write a number with four digits, in full if it is a whole one."""
    return f"{value:,.0f}" if value == int(value) or value >= 10_000 else f"{value:,.4g}"


# Tables


def _frequency_table(rope: ra.RoPE, context: int | None) -> Iterator[str]:
    if rope.scaling is not None and not rope.scaling.resolved:
        return
    lengths = _wavelengths(rope.frequencies)
    head = ["pair", "wavelength"]
    columns: list[list[str]] = [[str(i) for i in range(len(lengths))], list(map(_length, lengths))]
    if rope.scaling is not None:
        head += ["without the rule"]
        columns += [list(map(_length, _wavelengths(replace(rope, scaling=None).frequencies)))]
    if context is not None:
        head += ["rotations in the context"]
        columns += [[_number(context / length) for length in lengths]]
    yield ""
    yield _row(head, head)
    for i in _chosen(len(lengths)):
        yield _row([column[i] for column in columns], head)


def _chosen(count: int) -> list[int]:
    """Return a few indices, the first and the last among them."""
    return sorted({round(i * (count - 1) / (_ROWS - 1)) for i in range(_ROWS)})


def _length(value: float) -> str:
    return _number(value) if isfinite(value) else "none"


def _row(cells: Sequence[str], head: Sequence[str]) -> str:
    widths = [max(len(title), 12) for title in head]
    return "  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


# Origins


def _origins(readings: Sequence[Reading]) -> Iterator[str]:
    stated_values: dict[str, Any] = {}
    inferred_values: dict[str, Any] = {}
    for reading in readings:
        stated_values |= reading.stated
        inferred_values |= reading.inferred
    yield from _section("Stated in the config", stated_values)
    yield from _section("Inferred, from the model's code and the defaults of its class", inferred_values)
    facts = list(dict.fromkeys(note for reading in readings for note in _notes(reading, "fact")))
    if facts:
        yield from ("", "Notes", *_bullets(facts))
    doubts = list(dict.fromkeys(doubt for reading in readings for doubt in _doubts(reading)))
    yield ""
    yield "Doubtful: check against the model's code" if doubts else "Doubtful: nothing"
    yield from _bullets(doubts)


def _notes(reading: Reading, kind: str) -> list[str]:
    return [note for note in reading.notes if note.kind == kind]


def _bullets(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        yield from hanging("  * ", text)


def _section(title: str, values: dict[str, Any]) -> Iterator[str]:
    if values:
        yield ""
        yield title
        yield from _aligned([(name, repr(value)) for name, value in values.items()])


def _doubts(reading: Reading) -> Iterator[str]:
    """Yield the inferences that may be wrong, and the notes that are no plain facts."""
    inferred = reading.inferred
    if "convention" in inferred:
        yield str(inferred["convention"])
    if inferred.get("original_max_position_embeddings") == "max_position_embeddings":
        yield "the trained context is not stated: max_position_embeddings is taken for it"
    if "part" in inferred:
        yield f"the part {inferred['part']!r} was read; --part chooses another"
    yield from _notes(reading, "doubt")


def _aligned(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield rows with the second cells in one column, wrapped."""
    width = min(max((len(name) for name, _ in rows), default=0), 44)
    for name, text in rows:
        yield from hanging(f"  {name:<{width}}  ", text)
