"""Find the rotation that plain calls make: in another library or layout, by other fields, backwards.

The search is `rope_array.diagnose`'s. The code is called for each library, layout and kind of positions.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rope_array._diagnose._mistakes import base_of_linspace, odd_pairs

from ._call import make_at
from ._cause import merged
from ._claims import one_line
from ._contract import Accuracy, assert_contract, eps
from ._explanation import Explanation
from ._factors import SIZES, WIDTH
from ._judge import Floats, Input, Judge
from ._library_target import OwnApply, rope_type_of
from ._rules import RULES
from ._target import Target

_LAYOUTS = ("...sd", "bshd", "sbhd", "hsd", "shd", "bsd", "sd", "1hsd", "1shd", "b1sd", "11sd")
_PLAIN = {"pairing": "interleaved", "base": 10000.0, "rotary_start": 0}
# Bases whose series may be rounded, cut or changed by a mistake.
_BASES = (10000.0, 500000.0, 1e6)
_MOST_ROWS = 64
UNCHANGED = "it returns x as it is"
_OTHER_POSITIONS = {
    "offset": "it takes consecutive positions only",
    "batch": "it takes positions of shape (B, S) only",
    "row": "it takes positions of shape (1, S) only",
    "arange": "it takes no positions: rows count from 0",
}


class CallSetup(NamedTuple):
    """A way to call: the library and layout of x, and whether rows count from 0."""

    library: str
    layout: str
    rows: bool = False


class Probe(NamedTuple):
    """A call of the target, and its result."""

    y: Floats
    x: Input
    pos: NDArray[np.int64]
    fields: dict[str, Any]
    dtype: str


class Rotation(NamedTuple):
    """The fields of a rotation that differ, and of these the ones that a claim may state; or a mistake."""

    fields: Mapping[str, Any]
    stated: Mapping[str, Any]
    inverse: bool = False
    shift: int = 0
    mistake: str = ""


def find_rotation(target: Target) -> Explanation | str | None:
    """Return the claims with which plain calls rotate as they say; else the fault of the call, or None.

    The text is empty if no claim is needed. Other positions and another direction are no claims.
    """
    first: Probe | Exception | None = None
    mistake, served = "", list[str]()
    for setup in _setups(target):
        if any(_is_narrower(setup.layout, layout) for layout in served):
            continue
        probe = _probe(target, setup)
        first = probe if first is None else first
        is_own_call = setup == (target.library, target.layout, False)
        rotation = _rotation_of(probe, (0, 1, -1) if is_own_call else (0,))
        if isinstance(first, Probe) and np.array_equal(first.y, first.x.values):
            return UNCHANGED
        if rotation is not None and not rotation.mistake:
            batched = _of_a_batch(target) if setup.layout != target.layout else None
            return batched or _explanation_of(target, setup, probe, rotation)
        if rotation is not None and is_own_call:
            mistake = rotation.mistake
        if isinstance(probe, Probe) and probe.y.shape == probe.x.values.shape:
            served.append(setup.layout)
    if isinstance(first, Exception):
        return of_other_positions(target) or _error_text(first)
    return f"in the plain call, {mistake}" if mistake else None


def _is_narrower(layout: str, served: str) -> bool:
    """Return whether a layout is a part of another that the target serves: then fewer calls are tried.

    A fault that fewer calls do not show would look like a claim that is missing.
    """
    letters, served_letters = (name.replace("...", "bh").replace("1", "") for name in (layout, served))
    served_left = iter(served_letters)
    return letters != served_letters and all(letter in served_left for letter in letters)


def of_other_positions(target: Target, claims: Iterable[str] = _OTHER_POSITIONS) -> Explanation | None:
    """Return the hypothesis that the target takes positions of another shape only, or none."""
    for claim in claims if target.positions == "any" else ():
        try:
            rotation = find_rotation(replace(target, positions=claim))
        except ValueError:  # other claims contradict it
            continue
        if isinstance(rotation, Explanation):
            claimed = _claimed(_OTHER_POSITIONS[claim], positions=claim)
            return _together([claimed, rotation] if rotation.text else [claimed])
    return None


def _of_a_batch(target: Target) -> Explanation | None:
    """Return the hypothesis of positions of shape (B, S) if it explains the results without another layout.

    Tables of rows, with an axis for the heads after the first, broadcast to (B, S, H, D) too.
    """
    hypothesis = of_other_positions(target, ["batch"])
    return None if hypothesis is None or "layout" in hypothesis.claims else hypothesis


class NotAnArray(Exception):
    """A call returned no array; the message is the fault."""


def _error_text(error: Exception) -> str:
    """Return the fault of a plain call that raises."""
    return str(error) if isinstance(error, NotAnArray) else f"rotate(x, pos) raises {one_line(error)}"


def _setups(target: Target) -> list[CallSetup]:
    """Return the libraries and layouts to call in, those with the fewest changes first."""
    if isinstance(target.rotate, OwnApply):
        return [CallSetup(target.library, target.layout)]
    libraries = dict.fromkeys([target.library, *(n for n in ("numpy", "torch", "jax") if n in sys.modules)])
    setups = itertools.product(libraries, dict.fromkeys([target.layout, *_LAYOUTS]), (False, True))
    return sorted(
        itertools.starmap(CallSetup, setups),
        key=lambda setup: (setup.library != target.library) + (setup.layout != target.layout) + setup.rows,
    )


# ---- calls ----


def _probe(target: Target, setup: CallSetup, width: int = WIDTH) -> Probe | Exception:
    """Call the target in a library and a layout; return the exception if it raises.

    If rows count from 0, the target has to ignore positions.
    """
    try:
        judge = _judge_of(target, setup, width)
        # Use positions that differ from the row indices, if the target takes any.
        count = min(_MOST_ROWS, target.reach + 1)
        pos = np.arange(count) if setup.rows else judge.row(3, count)
        x = make_at(judge, pos, rows=(*SIZES[:2], count), width=width).xs[0]
        with judge.lib.running(), np.errstate(all="ignore"):
            y = judge.call(x, judge.pos(pos))
            if not hasattr(y, "dtype"):
                claim = ", or claim in_place=true if it writes its result into x" if y is None else ""
                type_name = type(y).__name__
                return NotAnArray(f"rotate(x, pos) returns a {type_name}; return x rotated, one array{claim}")
            if setup.rows:
                later = judge.call(x, judge.pos(pos + 1))
                if not np.array_equal(judge.numbers(y), judge.numbers(later)):
                    return ValueError("it uses pos")
            return Probe(judge.numbers(y), x, pos, judge.fields({}), judge.lib.dtype_of(y))
    except Exception as error:  # the target's own, or a claim that contradicts the layout
        return error


def _judge_of(target: Target, setup: CallSetup, width: int) -> Judge:
    """Return a judge that calls the target in a library and a layout, in a dtype that it takes."""
    moved = replace(target, library=setup.library, layout=setup.layout)
    head_dim = moved.width_of(width) if moved.taken_widths or width != WIDTH else None
    dtypes = target.claimed if setup.library == target.library else target.dtypes or ()
    names = ("float32", "float64", "float16", "bfloat16")
    dtype = next((name for name in names if name in dtypes), "float32")
    furthest = min(target.reach, 2**31 - 1)
    return Judge(replace(moved, declared=True, head_dim=head_dim, furthest=furthest, dtypes=(dtype,)))


# ---- the rotation of a result ----


def _rotation_of(probe: Probe | Exception, shifts: Iterable[int] = (0,)) -> Rotation | None:
    """Ask `diagnose` for the only rotation, or mistake, that a result is; the definition has to agree.

    `shifts` are added to the positions.
    """
    if not isinstance(probe, Probe) or probe.y.shape != probe.x.values.shape:
        return None
    mistake = None
    for shift in shifts:
        rotation = _diagnosed(probe, shift)
        if rotation is not None and rotation.mistake:
            mistake = mistake or rotation
        elif rotation is not None:
            return rotation if _is_rotated(probe, rotation) else None
        elif not shift:
            return None
    return mistake


def _diagnosed(probe: Probe, shift: int) -> Rotation | None:
    narrow = probe.x.dtype == "bfloat16"  # not a dtype of NumPy
    before, after = (array if narrow else array.astype(probe.x.dtype) for array in (probe.x.values, probe.y))
    diagnose = import_module("rope_array").diagnose
    try:
        diagnosis = diagnose(before, after, probe.pos + shift, tolerance=2.0**-5 if narrow else None)
    except ValueError:
        return None
    if (rope := diagnosis.rope) is not None:
        return _of_rope(rope, probe, shift)
    if len(diagnosis.explanations) == 1 and diagnosis.explanations[0].mistake:
        return Rotation({}, {}, mistake=diagnosis.explanations[0].mistake)
    return None


def _of_rope(rope: Any, probe: Probe, shift: int) -> Rotation | None:
    """Return the fields of a rope that differ from the target's; None if the suite has no words for it."""
    rule, inverse = rope.scaling, False
    if type(rule).__name__ == "Reversed":
        rule, inverse = rule.rule, True
    names = (*_PLAIN, "out_pairing", "attention_factor", "inv_freq")
    values = {name: getattr(rope, name) for name in names}
    built_in = {**_PLAIN, **probe.fields}
    changed = {name: value for name, value in values.items() if value not in (None, built_in.get(name))}
    if inverse and rope.out_pairing:
        changed |= {"pairing": rope.out_pairing, "out_pairing": rope.pairing}
    if rope.rotary_dim not in (rope.head_dim - rope.rotary_start, built_in.get("rotary_dim")):
        changed["rotary_dim"] = rope.rotary_dim
        if rope.base != float(f"{rope.base:.3g}"):  # one series, cut: the other pairs may be wrong
            return None
    if rule is not None:
        if rope.axes is not None or rope_type_of(type(rule)) not in RULES:
            return None
        parameters = {field.name: getattr(rule, field.name) for field in fields(rule)}
        parameters = {name: value for name, value in parameters.items() if value is not None}
        changed["scaling"] = {"rope_type": rope_type_of(type(rule)), **parameters}
    return Rotation(changed, _without_mistakes(rope, probe, changed), inverse, shift)


def _without_mistakes(rope: Any, probe: Probe, changed: dict[str, Any]) -> dict[str, Any]:
    """Return fields without frequencies that are a mistake: of a few pairs, or with other exponents.

    The wrong results name it.
    """
    base, close = None, 8 * eps(probe.x.dtype)
    if "inv_freq" in changed:
        omegas = np.array(rope.inv_freq)
        base = (odd_pairs(omegas, _BASES, close / max(1, int(probe.pos.max()))) or (None,))[0]
    elif "base" in changed:
        base = base_of_linspace(rope.base, rope.rotary_dim // 2, _BASES, 1e-4)
    if base is None:
        return changed
    stated = {name: value for name, value in changed.items() if name not in ("inv_freq", "base")}
    return stated if base == probe.fields.get("base", 10000.0) else {**stated, "base": base}


def _is_rotated(probe: Probe, rotation: Rotation) -> bool:
    """Return whether a result is x rotated, in the weakest class of accuracy."""
    accuracy = Accuracy("float32", "float32" if probe.x.dtype in ("float32", "float64") else "own")
    try:
        assert_contract(
            probe.y, probe.x.values, probe.pos + rotation.shift, dtype=probe.x.dtype, flushes=True,
            accuracy=accuracy, inverse=rotation.inverse, **{**probe.fields, **rotation.fields},
        )  # fmt: skip
    except (AssertionError, ValueError, TypeError):
        return False
    return True


# ---- in words, and as claims ----


def _explanation_of(target: Target, setup: CallSetup, probe: Any, rotation: Rotation) -> Explanation | None:
    stated = rotation.stated
    if "rotary_dim" in stated:  # it may be a share of the head_dim
        wide_probe = _probe(target, setup, width=64)
        if isinstance(wide_probe, Probe) and not _is_rotated(wide_probe, rotation):
            again = _rotation_of(wide_probe)
            if again is None or again.mistake:
                return None
            stated = {**again.stated, "head_dim": 64}
    return _together([*_of_setup(target, setup), *_of_fields(stated), *_of_dtype(probe)])


def _of_setup(target: Target, setup: CallSetup) -> Iterator[Explanation]:
    if setup.library != target.library:
        yield _claimed(f"it takes arrays of {setup.library}", library=setup.library)
    if setup.layout != target.layout:
        yield _claimed(f"the layout of x is ({', '.join(setup.layout)})", layout=setup.layout)
    if setup.rows:
        yield _claimed("it does not use pos: rows count from 0", positions="arange")


def _claimed(text: str, **claims: Any) -> Explanation:
    return Explanation(text, facts=claims, claims=claims)


def _of_fields(stated: Mapping[str, Any]) -> Iterator[Explanation]:
    for name, value in stated.items():
        claims = {name: value} if name == "head_dim" else {"fixed": {name: value}}
        yield Explanation(
            _field_text(name, value, "rotary_start" in stated), facts={name: value}, claims=claims
        )


def _of_dtype(probe: Probe) -> Iterator[Explanation]:
    if probe.dtype != probe.x.dtype:
        text = f"the result for {probe.x.dtype} is {probe.dtype}; convert it to x's dtype"
        yield Explanation(text, facts={"dtype": probe.dtype}, around=_casting)


def _casting(rotate: Callable[..., Any]) -> Callable[..., Any]:
    """Return code whose result is converted to the dtype of x."""

    @functools.wraps(rotate)
    def call(x: Any, *arguments: Any, **spec: Any) -> Any:
        y = rotate(x, *arguments, **spec)
        return tuple(map(_cast, y, x)) if isinstance(y, tuple) and isinstance(x, tuple) else _cast(y, x)

    return call


def _cast(y: Any, x: Any) -> Any:
    return y.astype(x.dtype) if hasattr(y, "astype") else y.to(x.dtype)


def _together(explanations: list[Explanation]) -> Explanation:
    """Return several causes that are known together as one."""
    claims: dict[str, Any] = {}
    for each in explanations:
        claims = merged(claims, each.claims)
    facts = {name: value for each in explanations for name, value in each.facts.items()}
    around = next((each.around for each in explanations if each.around), None)
    text = ", ".join(each.text for each in explanations)
    return Explanation(text, facts=facts, claims=claims, around=around)


_TEXTS = {
    "pairing": "{} pairing",
    "out_pairing": "results are in {} pairing",
    "base": "the base is {:g}",
    "rotary_dim": "it rotates {} features",
    "rotary_start": "the rotated slice starts at feature {}",
    "head_dim": "of a head_dim of {}",
    "attention_factor": "results are {:.7g} times as long",
    "inv_freq": "the frequencies are {}",
    "scaling": "frequencies are scaled by {}",
}


def _field_text(name: str, value: Any, starts: bool) -> str:
    if name == "scaling" and value["rope_type"] == "linear":
        return f"frequencies are divided by {value['factor']:g}"
    if name == "rotary_dim" and not starts:
        return f"it rotates the first {value} features"
    if name == "inv_freq":
        value = ", ".join(f"{omega:.5g}" for omega in value)
    return _TEXTS[name].format(value)
