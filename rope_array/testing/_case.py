"""One call as a value: made, judged, simplified, and written as text that can be parsed."""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Context, Decimal
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ._claims import DTYPES, SIZES
from ._contract import ADDED, Accuracy
from ._definition import pairs_of
from ._judge import Input, Judge
from ._parts import PARTS
from ._refused import refuses_gradient

Ints = NDArray[np.int64]

# 16 bits round the factors.
RULES = {
    "linear": {"rope_type": "linear", "factor": 3.3},
    "ntk": {"rope_type": "ntk", "factor": 3.3},
    "yarn": {"rope_type": "yarn", "factor": 3.3, "original_max_position_embeddings": 64},
}
# Axes of two coordinates for a number of pairs.
MAPS: dict[str, Callable[[int], dict[str, Any]]] = {
    "alternating": lambda n: {"coordinates": (0, 1) * (n // 2) + (0,) * (n % 2), "count": 2},
    "blocks": lambda n: {"coordinates": (0,) * (n // 2) + (1,) * (n // 2), "widths": (n, n), "blocks": 2},
}
# Axes of positions, as sizes of (B, H, S) or 1.
SHAPES = ("S", "", "1", "BS", "1S", "B1", "11", "BHS", "B1S", "1HS", "BH1")
# Orders of the positions in a row of n: packed sequences, a prompt that is padded on the left, and others.
ORDERS: dict[str, Callable[[int], Ints]] = {
    "ascending": np.arange,
    "descending": lambda n: np.arange(n)[::-1],
    "packed": lambda n: np.arange(n) % (n // 2 + 1),
    "padded": lambda n: np.where(np.arange(n) < n // 2, 1, np.arange(n) - n // 2),
    "same_ends": lambda n: np.arange(n) * (np.arange(n) < n - 1),
    "same": lambda n: np.zeros(n, int),
}
# Rows beyond this number have no order, as each row may need exact angles of its own.
_MOST_ORDERED = 130
NEAR, FAR = 100, 2**31 - 1
# Calls for one x, if the target takes no batch or no heads.
_MOST_CALLS = 30
# Distinct positions of one call: each costs an exact angle for every pair.
_DISTINCT = 8
_WIDTHS = (36, 44, 64, 72, 80, 88, 96, 112, 128, 192, 256)
# The value of `in_tuple` for a tuple of arrays of two dtypes.
TWO_DTYPES = "two_dtypes"
COTANGENTS = ("contiguous", "transposed", "broadcast", "every_second")


class Case(NamedTuple):
    """One call: a value for each factor; None leaves a field out.

    Attributes
    ----------
    dtype, rows, width
        Of x: its dtype, its axes without the features, with the sequence last, and its head_dim.
    positions, kind, reach
        The axes of positions, as letters of (B, H, S) or 1; their dtype; their largest value, or the smallest
        if it is negative.
    order
        The order of the positions in a row, by a name in `ORDERS`; None for a few positions, drawn at random.
    layout
        The strides of x, by a name of `Library.strided`.
    seq_axis, base, rotary_dim, rotary_start, pairing, out_pairing, attention_factor, inverse
        Fields of the call.
    inv_freq
        True for frequencies in no order, one negative.
    scaling, axes
        A name in `RULES` or a rule in JSON; a name in `MAPS`.
    in_tuple
        True to give x as the second of two arrays.
    gradient
        The strides of the cotangent, to judge the gradient too.
    """

    dtype: str = "float32"
    rows: tuple[int, ...] = SIZES
    width: int = 16
    positions: str = "S"
    kind: str = "int64"
    reach: int = NEAR
    order: str | None = None
    layout: str | None = None
    seq_axis: int | None = None
    base: float | None = None
    rotary_dim: int | None = None
    rotary_start: int | None = None
    pairing: str | None = None
    out_pairing: str | None = None
    inv_freq: bool | None = None
    attention_factor: float | None = None
    scaling: str | None = None
    axes: str | None = None
    inverse: bool | None = None
    in_tuple: bool | str | None = None
    gradient: str | None = None

    def spec(self, j: Judge) -> dict[str, Any]:
        """Return the fields of the call."""
        names = ("seq_axis", "base", "rotary_dim", "rotary_start", "pairing", "out_pairing")
        spec = {name: getattr(self, name) for name in (*names, "attention_factor", "inverse")}
        spec = {name: value for name, value in spec.items() if value is not None}
        if self.inv_freq:
            spec["inv_freq"] = tuple(1.75 * 0.61**i * (-1) ** (i == 2) for i in range(self.num_pairs(j)))
        if self.scaling:
            spec["scaling"] = _rule_of(self.scaling)
        if self.axes:
            spec["axes"] = MAPS[self.axes](self.num_pairs(j))
        return spec

    def num_pairs(self, j: Judge) -> int:
        """Return the number of pairs."""
        fields = j.target.defaults
        if self.rotary_dim is not None:
            return self.rotary_dim // 2
        for name, num_pairs in (("inv_freq", len), ("axes", lambda axes: len(axes["coordinates"]))):
            if fields.get(name) is not None:
                return int(num_pairs(fields[name]))
        start = self.rotary_start if self.rotary_start is not None else fields.get("rotary_start") or 0
        return int(fields.get("rotary_dim") or self.width - start) // 2

    def text(self, plain: Case) -> str:
        """Return the factors that differ from a plain case, as `parse_case` reads them."""
        return " ".join(f"{name}={_text_of(getattr(self, name))}" for name in self.differing(plain))

    def differing(self, plain: Case) -> list[str]:
        """Return the names of the factors that differ from another case's."""
        return [name for name in self._fields if getattr(self, name) != getattr(plain, name)]


def _rule_of(text: str) -> dict[str, Any]:
    """Return the rule that a text names, or is in JSON."""
    return RULES.get(text) or json.loads(text)


def in_tuples(j: Judge) -> list[bool | str]:
    """Return the value of `in_tuple` in cases: two dtypes if they are claimed; none without tuples."""
    return [TWO_DTYPES if j.claims("mixed_dtypes") else True] if j.claims("tuple[2]") else []


def plain_case(j: Judge) -> Case:
    """Return the case of a call without fields, at the suite's usual sizes."""
    return Case(j.dtype, SIZES, j.width, kind=j.target.position_dtype, reach=min(NEAR, j.target.reach))


def orders(j: Judge) -> list[str | None]:
    """Return the orders to try: None, and every order if the target takes any positions."""
    return [None, *(ORDERS if j.claims("any_positions") else ())]


def _text_of(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "scalar" if value == "" else str(value)


# ---- parsing ----


def _as_bool(text: str) -> bool:
    if text != "True":
        raise ValueError("give True, or leave it out")
    return True


def _as_rows(text: str) -> tuple[int, ...]:
    rows = tuple(int(size) for size in text.split(","))
    if min(rows) < 1:
        raise ValueError("give sizes of 1 or more")
    return rows


def _as_shape(text: str) -> str:
    return _one_of(*SHAPES)("" if text == "scalar" else text)


def _as_rule(text: str) -> str:
    if text not in RULES and not isinstance(json.loads(text), dict):
        raise ValueError(f"give one of {', '.join(RULES)}, or a rule in JSON")
    return text


def _one_of(*names: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in names:
            raise ValueError(f"give one of {', '.join(name or 'scalar' for name in names)}")
        return text

    return read


_PAIRING = _one_of("interleaved", "half")
_READERS: dict[str, Callable[[str], Any]] = {
    "dtype": _one_of(*DTYPES),
    "rows": _as_rows,
    "width": int,
    "positions": _as_shape,
    "kind": str,
    "reach": int,
    "order": _one_of(*ORDERS),
    "layout": str,
    "seq_axis": int,
    "base": float,
    "rotary_dim": int,
    "rotary_start": int,
    "pairing": _PAIRING,
    "out_pairing": _PAIRING,
    "inv_freq": _as_bool,
    "attention_factor": float,
    "scaling": _as_rule,
    "axes": _one_of(*MAPS),
    "inverse": _as_bool,
    "in_tuple": lambda text: text if text == TWO_DTYPES else _as_bool(text),
    "gradient": _one_of(*COTANGENTS),
}


def parse_case(text: str, plain: Case) -> Case:
    """Return the case that a text describes; factors that it leaves out are as in `plain`.

    Raises
    ------
    ValueError
        A factor is unknown, or its value cannot be read.
    """
    values = {}
    for part in text.split():
        name, equals, value = part.partition("=")
        if name not in _READERS or not equals:
            known = ", ".join(_READERS)
            raise ValueError(f"case: cannot read {part!r}; give factors as NAME=VALUE, of {known}")
        try:
            values[name] = _READERS[name](value)
        except ValueError as error:
            raise ValueError(f"case: cannot read {part!r}: {error}") from None
    return plain._replace(**values)


# ---- validity ----


def fits(j: Judge, case: Case) -> bool:
    """Return whether a case is valid, and its combination of values claimed."""
    lead, exact = len(case.rows) - 1, j.target.angles == "exact"
    if len(case.positions) > 1 and (len(case.positions) - 1 > lead or not (exact or lead == 2)):
        return False  # other code may broadcast positions of a batch differently, except for (B, H, S, D)
    if case.seq_axis is not None and (case.seq_axis == -1 or not -lead - 2 <= case.seq_axis <= lead):
        return False
    if case.kind.startswith("python") and (len(case.positions) > 1 and not exact):
        return False
    if case.kind.startswith("python") and not case.positions and not j.claims("python_positions[int]"):
        return False
    if case.reach < 0 and case.kind.startswith("uint"):
        return False
    if case.order and not _order_fits(j, case):
        return False
    if (case.layout is not None and lead != 2) or not _rows_fit(j, case):
        return False
    if case.inv_freq and (case.base is not None or case.scaling):
        return False
    if case.scaling and not j.claims(f"scaling[{_rule_of(case.scaling).get('rope_type')}]"):
        return False
    return _slice_fits(j, case) and _map_fits(j, case)


def _order_fits(j: Judge, case: Case) -> bool:
    return j.claims("any_positions") and case.positions.endswith("S") and case.rows[-1] <= _MOST_ORDERED


def _rows_fit(j: Judge, case: Case) -> bool:
    """Return whether there are positions for all rows, and few calls if some axes are looped over."""
    if case.rows[-1] > j.target.reach + 1 and not j.claims("any_positions"):
        return False
    looped = [size for axis, size in zip("bh", case.rows[:-1], strict=False) if axis in j.target.looped]
    return math.prod(looped) <= _MOST_CALLS


def _slice_fits(j: Judge, case: Case) -> bool:
    fields = j.target.defaults
    start = case.rotary_start if case.rotary_start is not None else fields.get("rotary_start") or 0
    width = case.rotary_dim if case.rotary_dim is not None else fields.get("rotary_dim")
    fixed = fields.get("inv_freq")
    if fixed is not None and not case.inv_freq and (case.rotary_dim or case.rotary_start):
        return False
    width = case.width - start if width is None else width
    return start >= 0 and width >= 0 and width % 2 == 0 and start + width <= case.width


def _map_fits(j: Judge, case: Case) -> bool:
    pairs = case.num_pairs(j)
    # NTK scaling needs two frequencies or more in each block.
    of_base = case.scaling is not None and ("ntk" in case.scaling or "dynamic" in case.scaling)
    if of_base and pairs < (4 if case.axes == "blocks" else 2):
        return False
    return case.axes is None or (pairs > 0 and (case.axes != "blocks" or pairs % 2 == 0))


def claimed_shape(j: Judge, shape: str) -> bool:
    """Return whether positions of a shape, a name in `SHAPES`, are claimed."""
    needs = ["head_positions"] if len(shape) == 3 else ["batch_positions"] if len(shape) == 2 else []
    if "1" in shape or not shape:
        needs += [f"broadcast_positions[{shape or 'scalar'}]", "any_positions"]
    return j.claims(*needs, *(["offset_positions"] if len(shape) > 1 else []))


def position_kinds(j: Judge) -> list[str]:
    """Return the claimed kinds of positions: dtypes, and numbers of Python's."""
    usual = j.target.position_dtype
    kinds = [usual, *(kind for kind in j.parts("narrow_positions") if kind != usual)]
    if j.claims("any_positions", "python_positions[list]"):
        kinds.append("python")
    if j.claims("any_positions", "float_positions"):
        kinds += ["float", *(["python_float"] if j.claims("python_positions[list]") else [])]
    return kinds


def claimed_widths(j: Judge) -> list[int]:
    """Return the head_dims of models that are claimed, the suite's usual one first."""
    wide = [j.target.width_of(width) for width in _WIDTHS if j.claims(f"widths[{width}]")]
    return [j.width, *sorted({*wide} - {j.width})]


def every_width(j: Judge) -> list[int]:
    """Return all claimed head_dims up to 256: every even one, if all that are tried are claimed."""
    names = ("narrow_heads", "widths")
    claimed = [int(label) for name in names for label in j.parts(name)]
    if len(claimed) == sum(len(PARTS[name]) for name in names):
        claimed = [*range(2, 257, 2)]
    return sorted({j.width, *(width for width in claimed if j.target.width_of(width) == width)})


# ---- the call ----


def check_case(j: Judge, case: Case) -> bool:
    """Call and judge the result, the arrays and their memory; return False if the target refused the call."""
    spec, (pos, numbers) = case.spec(j), positions_of(j, case)
    if case.gradient:
        xs = inputs_of(j, case, 0)
        gs = [with_layout(j, g, case.gradient) for g in inputs_of(j, case._replace(layout=None), 1)]
        return check_gradient(j, xs, gs, pos, numbers, in_tuple=bool(case.in_tuple), **spec)
    watched = _judged(j, inputs_of(j, case, 0), pos, numbers, bool(case.in_tuple), spec)
    if j.releases and any(is_alive() for is_alive in watched):
        gc.collect()
        assert not any(is_alive() for is_alive in watched), "x stays in memory after the call"
        j.releases = False
    return bool(watched)


def _judged(
    j: Judge, xs: Sequence[Input], pos: Any, numbers: Any, in_tuple: bool, spec: dict[str, Any]
) -> list[Callable[[], bool]]:
    """Call and judge; return functions that tell whether each x is in memory, none if the call is refused."""
    with _unwritten(j, x=[x.array for x in xs], pos=[pos]):
        ys = j.try_call(tuple(xs) if in_tuple else xs[0], pos, **spec)
        if ys is None:
            return []
        _check_results(j, xs, ys, numbers, in_tuple, spec)
    _check_own_memory(j, xs, ys if in_tuple else [ys])
    return [j.lib.watch(x.array) for x in xs]


@contextmanager
def _unwritten(j: Judge, **named: Sequence[Any]) -> Iterator[None]:
    """Assert that what runs inside writes none of these arrays, nor changes their shapes."""
    arrays = [(name, array) for name, some in named.items() for array in some if j.lib.owns(array)]
    before = [j.lib.snapshot(array) for _, array in arrays]
    yield
    for (name, array), bits in zip(arrays, before, strict=True):
        assert j.lib.snapshot(array) == bits, f"{name} was written"


def _check_own_memory(j: Judge, xs: Sequence[Input], ys: Iterable[Any]) -> None:
    """Assert that no result shares memory with an x, if x is not rotated in place by design."""
    if j.claims("keeps_x"):
        apart = not any(y is x.array or j.lib.shares_memory(y, x.array) for y in ys for x in xs)
        assert apart, "a result shares memory with x"


def _check_results(
    j: Judge, xs: Sequence[Input], ys: Any, numbers: Any, in_tuple: bool, spec: dict[str, Any]
) -> None:
    if in_tuple:
        count = len(ys) if isinstance(ys, tuple | list) else f"a {type(ys).__name__}"
        assert count == len(xs), f"a tuple of {len(xs)} arrays gives {count}"
    for y, x in zip(ys if in_tuple else [ys], xs, strict=True):
        j.check(y, x, numbers, **spec)


def inputs_of(j: Judge, case: Case, seed: int) -> list[Input]:
    """Return x; for a tuple, another array first."""
    axis = case.seq_axis if case.seq_axis is not None else -2
    values = np.random.default_rng(seed).standard_normal((*case.rows, case.width))
    values = np.moveaxis(values, -2, axis) if len(case.rows) > 1 or axis != -2 else values
    x = with_layout(j, j.array(values, case.dtype), case.layout)
    return [j.array(values[..., ::-1], first_dtype(j, case)), x] if case.in_tuple else [x]


def first_dtype(j: Judge, case: Case) -> str:
    """Return the dtype of the first of the arrays of a call."""
    return j.other_dtype(case.dtype) if case.in_tuple == TWO_DTYPES else case.dtype


def with_layout(j: Judge, x: Input, layout: str | None) -> Input:
    """Return an array of the same values in other memory; an expanded array repeats its first batch."""
    if layout is None or layout == "contiguous":
        return x
    if layout == "broadcast":
        return _broadcast(j, x)
    for name, array in j.lib.strided(x.array) if x.values.ndim == 4 else ():
        if layout_name(name) == layout:
            return x._replace(array=array)
    return x


def _broadcast(j: Judge, x: Input) -> Input:
    first = j.array(x.values[:1], x.dtype)
    values = np.broadcast_to(first.values, x.values.shape)
    return x._replace(array=j.lib.expanded(first.array, values.shape), values=values)


def layout_name(name: str) -> str:
    """Return a name of `Library.strided` without spaces."""
    return name.replace(" ", "_")


def positions_of(j: Judge, case: Case) -> tuple[Any, Any]:
    """Return positions for the target, and their numbers for the definition."""
    shape = tuple({**_sizes(case), "1": 1}[axis] for axis in case.positions)
    shape = (*shape, 2) if case.axes else shape
    numbers = _numbers(j, case, shape)
    if case.kind == "python":
        return (numbers.tolist() if shape else int(numbers)), numbers
    if case.kind == "python_float":
        numbers = np.minimum(numbers + 0.25, j.target.reach)
        return numbers.tolist(), numbers
    if case.kind == "float":
        wide = case.dtype == "float64" and j.target.angles == "float64"
        wide = (wide and j.claims("float_positions[float64]")) or not j.claims("float_positions[float32]")
        numbers = np.minimum(numbers + 0.25, j.target.reach).astype("float64" if wide else "float32")
        return j.pos(numbers, numbers.dtype.name), numbers
    return j.pos(numbers, case.kind), numbers


def _sizes(case: Case) -> dict[str, int]:
    return dict(zip("BH", case.rows[:-1], strict=False)) | {"S": case.rows[-1]}


def _numbers(j: Judge, case: Case, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return positions in their order; by default drawn out of a few, the same few for each range."""
    low, high = _bounds(j, case)
    if not j.claims("any_positions"):
        return np.broadcast_to(j.row(max(low, high - 8), shape[-1]), shape)
    if case.order:
        return low + _ordered(case.order, case, shape) % (high - low + 1)
    few = np.random.default_rng(0).integers(low, high, _DISTINCT, endpoint=True)
    few[0] = high
    distinct = _DISTINCT if case.width <= 32 else 3
    return np.asarray(few[np.random.default_rng(len(shape) + sum(shape)).integers(0, distinct, shape)])


def _ordered(order: str, case: Case, shape: tuple[int, ...]) -> Ints:
    """Return positions in an order, with a start for each batch; with axes, coordinates of an image."""
    *lead, rows = shape[: len(case.positions)]
    row = ORDERS[order](rows)
    batches = np.arange(math.prod(lead))
    # The first and last batches have equal positions, too.
    starts = 11 * batches * (batches < len(batches) - 1) if order == "same_ends" else 11 * batches
    numbers = starts.reshape(*lead, 1) + row
    return np.stack([numbers // 2, numbers % 2], -1) if case.axes else numbers


def _bounds(j: Judge, case: Case) -> tuple[int, int]:
    # Beyond 2^15 float32 angles may exceed their bound; accuracy_* report it.
    far = min(j.target.reach, 2**15 if j.target.angles == "float32" or "float" in case.kind else FAR)
    if case.kind in j.lib.integers:
        far = min(far, int(np.iinfo(case.kind).max))
    if case.reach < 0:
        return max(case.reach, -far), -1
    far = min(far, case.reach)
    return (far // 2 if far > NEAR else 0), far


# ---- gradients ----


def check_gradient(
    j: Judge,
    xs: Sequence[Input],
    gs: Sequence[Input],
    pos: Any,
    numbers: Any,
    *,
    in_tuple: bool = False,
    twice: bool = False,
    **spec: Any,
) -> bool:
    """Judge the value while a gradient is recorded, and the gradient; return False if the call is refused."""
    arrays = tuple(x.array for x in xs) if in_tuple else xs[0].array
    if not j.target.declared and j.try_call(tuple(xs) if in_tuple else xs[0], pos, **spec) is None:
        return False
    cotangents = [g.array for g in gs]
    with _unwritten(j, x=[x.array for x in xs], pos=[pos], **{"the cotangent": cotangents}):
        try:
            ys, pull = j.lib.pullback(lambda array: j.call(array, pos, **spec), arrays)
        except Exception as error:
            if not refuses_gradient(j, error):
                raise
            return False
        with _named("the value while a gradient is recorded: "):
            _check_results(j, xs, ys, numbers, in_tuple, spec)
        for _ in range(2 if twice else 1):
            pulled = pull(tuple(cotangents) if in_tuple else cotangents[0])
            with _named("the gradient: "):
                for one, x, g in zip(pulled if in_tuple else [pulled], xs, gs, strict=True):
                    check_adjoint(j, one, x, g, numbers, **spec)
    return True


def check_adjoint(
    j: Judge, pulled: Any, x: Input, g: Input, numbers: Any, like: str = "", **spec: Any
) -> None:
    """Assert that a gradient is the cotangent rotated back, times the amplitude.

    It has to be as accurate as in x's dtype, or as in the dtype `like`, rotated in that dtype.
    """
    j.check_kind(pulled, x)
    plan = pairs_of(x.values.shape[-1], {n: v for n, v in j.fields(spec).items() if v is not None})
    reciprocal = Context(prec=60).divide(Decimal(1), plan.amplitude)
    adjoint = {**spec, "inverse": not spec.get("inverse", False), "attention_factor": reciprocal}
    accuracy = j.target.accuracy._replace(arithmetic="own") if like else _of_gradients(j, ADDED)
    j.check_values(j.numbers(pulled), g._replace(dtype=like or g.dtype), numbers, accuracy, **adjoint)


def check_second_gradient(j: Judge, x: Input, g: Input, h: Input, numbers: Any, **spec: Any) -> bool:
    """Judge the gradient of a gradient by its cotangent g; return False if it is refused with an error."""
    pos = j.pos(numbers)
    if not j.target.declared and j.try_call(x, pos, **spec) is None:
        return False
    try:
        pulled = j.lib.second_gradient(lambda array: j.call(array, pos, **spec), x.array, g.array, h.array)
    except Exception:  # code that saves no second gradient may say so
        return False
    assert pulled is not None, "its part through the call is left out, without an error"
    j.check_kind(pulled, h)
    j.check_values(j.numbers(pulled), h, numbers, _of_gradients(j, "own"), **spec)
    return True


def _of_gradients(j: Judge, arithmetic: str) -> Accuracy:
    """Return the accuracy of gradients: the derivatives of other code add products in the dtype of x."""
    accuracy = j.target.accuracy
    if accuracy.angles == "exact" or accuracy.arithmetic == "own":
        return accuracy
    return accuracy._replace(arithmetic=arithmetic)


class _named:
    """Begin the message of an AssertionError with a text."""

    def __init__(self, text: str):
        self.text = text

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, AssertionError):
            raise AssertionError(f"{self.text}{error}") from None
