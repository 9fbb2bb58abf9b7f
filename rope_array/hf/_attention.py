"""Find the functions that rotate q and k, test them on random arrays, and replace them.

Most attentions of transformers call a function of their module, `apply_rotary_pos_emb(q, k, cos, sin)`. The
arrangement of its tables and of its pairs differs between models, and no name states it. So the function is
called with random arrays and tables, and compared with each layout. A function without a match is called as
it is.
"""

import functools
import inspect
import operator
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from types import FunctionType
from typing import Any

import torch

from rope_array import _dispatch
from rope_array._array_api.source import Tables
from rope_array._dynamo import traced_memo
from rope_array._errors import PatchError
from rope_array._spec.plan import Layout

from . import _operators

NARROW = (torch.float16, torch.bfloat16)
Function = Callable[..., Any]
DECISIONS = 64  # remembered for each function
# The parameters of functions that can be replaced; all but the names of the arrays are optional.
QK_PARAMETERS = ("q", "k", "cos", "sin")
X_PARAMETERS = ("x", "cos", "sin")
OPTIONS = ((), ("unsqueeze_dim",), ("position_ids", "unsqueeze_dim"))


@dataclass(frozen=True)
class RotaryFunction:
    """A model's function that multiplies q and k, or x, by cos and sin, and its layout.

    Attributes
    ----------
    function
        The model's function.
    arrangement
        How the tables are arranged: "cat" (c0 c1 c0 c1), "repeat" (c0 c0 c1 c1) or "pairs" (c0 c1).
    pairing, out_pairing
        As in `RoPE`.
    last
        Whether the last features of a head are rotated, in place of the first.
    seq_axis
        The axis of the positions, if the function has no `unsqueeze_dim`.
    sign
        -1 if the function rotates by the negative angle (NanoChat).
    """

    function: Function
    arrangement: str
    pairing: str
    out_pairing: str
    last: bool = False
    seq_axis: int | None = None
    sign: int = 1

    @property
    def is_single(self) -> bool:
        """Whether the function rotates one array, not q and k."""
        return parameters(self.function)[:3] == X_PARAMETERS


def parameters(function: Any) -> tuple[str, ...]:
    """Return the names of the parameters of a function; of none, if it has no signature."""
    function = getattr(function, "forward", function)  # a module of the package kernels
    if type(function) is FunctionType and not hasattr(function, "__wrapped__"):
        code = function.__code__
        return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ()


def rotates(function: Any) -> bool:
    """Return whether a function takes tables, by the names of its parameters."""
    if isinstance(function, type) or not callable(function):
        return False
    names = set(parameters(function))
    return {"cos", "sin"} <= names and bool(names & {"q", "x", "query", "tensor", "hidden_states"})


# ---- recognising a function ----

PAIRS, SEQ, HEADS = 4, 3, 5


def recognise(function: Function) -> RotaryFunction | None:
    """Return the layout of a function, found by calling it; None if no known layout matches."""
    names = parameters(function)
    heads = QK_PARAMETERS if names[:4] == QK_PARAMETERS else X_PARAMETERS
    if names[: len(heads)] != heads or names[len(heads) :] not in OPTIONS:
        return None
    matches = [candidate for candidate in _layout_candidates(function, names) if _matches(candidate)]
    return matches[0] if len(matches) == 1 else None


def _layout_candidates(function: Function, names: tuple[str, ...]) -> list[RotaryFunction]:
    axes = (None,) if "unsqueeze_dim" in names else (-2, -3)
    pairings = ("half", "interleaved")
    combinations = product(ARRANGED, pairings, pairings, (False, True), axes, (1, -1))
    return [RotaryFunction(function, *fields) for fields in combinations]


def _matches(candidate: RotaryFunction) -> bool:
    """Return whether our rotation matches the function, for heads of the rotary width and wider ones."""
    narrow_heads = [_matches_for_shape(candidate, 2 * PAIRS, axis) for axis in (-2, -3)]
    if False in narrow_heads or not any(narrow_heads):
        return False
    wide_heads = [_matches_for_shape(candidate, 2 * PAIRS + 6, axis) for axis in (-2, -3)]
    # With the width of the tables, the first features are the last. A function that rejects wider heads
    # is called with the rotated features alone.
    return False not in wide_heads and (any(wide_heads) or not candidate.last)


def _matches_for_shape(candidate: RotaryFunction, width: int, axis: int) -> bool | None:
    """Return whether our rotation matches the function for one shape; None if the function rejects it."""
    random = torch.Generator().manual_seed(width - axis)
    shape = (2, HEADS, SEQ, width) if axis == -2 else (2, SEQ, HEADS, width)
    q, k = (torch.randn(shape, generator=random, dtype=torch.float32) for _ in range(2))
    angles = torch.rand((2, SEQ, PAIRS), generator=random, dtype=torch.float32) * 6
    tables = [ARRANGED[candidate.arrangement](table) for table in (angles.cos(), angles.sin())]
    arrays: tuple[Any, ...] = (q,) if candidate.is_single else (q, k)
    option = {} if candidate.seq_axis else {"unsqueeze_dim": 1 if axis == -2 else 2}
    if candidate.seq_axis and candidate.seq_axis != axis:
        return None
    if candidate.seq_axis == -3:  # the vision towers: no batch
        arrays, tables = tuple(x[0] for x in arrays), [table[0] for table in tables]
    try:
        with torch.no_grad():
            theirs = candidate.function(*(x.clone() for x in arrays), *tables, **option)
    except Exception:  # whatever a function raises for arrays of another shape
        return None
    theirs = theirs if isinstance(theirs, tuple) else (theirs,)
    cos, sin = map(UNARRANGED[candidate.arrangement], tables)
    layout = _layout_of(candidate, arrays[0], cos)
    ours = _dispatch.rotate(arrays, Tables(cos, candidate.sign * sin, layout), (axis,))
    return all(
        y.shape == their_y.shape and bool(torch.isclose(y, their_y, atol=1e-5).all())
        for y, their_y in zip(ours, theirs, strict=True)
    )


# ---- tables ----


def _first_half(table: Any) -> Any:
    return table.narrow(-1, 0, table.shape[-1] // 2)  # faster than an index


# As `one_per_feature` of the array-api backend, which this package may not import; PyTorch's own calls take
# half of its time.
ARRANGED: dict[str, Function] = {
    "cat": lambda table: torch.cat((table, table), -1),
    "repeat": lambda table: table.repeat_interleave(2, -1),
    "pairs": lambda table: table,
}
UNARRANGED: dict[str, Function] = {
    "cat": _first_half,
    "repeat": lambda table: table[..., ::2].contiguous(),  # as the kernel reads tables
    "pairs": lambda table: table,
}


def _make_layout(width: int, pairs: int, last: bool, pairing: str, out_pairing: str) -> Layout:
    start = width - 2 * pairs if last else 0
    return Layout(width, start, start + 2 * pairs, pairing, out_pairing, None)


_layout: Callable[..., Layout] = traced_memo(_make_layout)


def _layout_of(function_layout: RotaryFunction, x: Any, cos: Any) -> Layout:
    """Return the layout of a function for the widths of x and of tables of pairs."""
    width, pairs = (operator.index(a.shape[-1]) for a in (x, cos))  # torch.jit.trace has tensors
    return _layout(width, pairs, function_layout.last, function_layout.pairing, function_layout.out_pairing)


# ---- replacements ----


def make_rotate_function(
    function_layout: RotaryFunction, exact: bool, *, rounded_tables: bool = False, norm: Any = None
) -> Function:
    """Return the function that replaces a model's, and calls it where the layout does not fit.

    `rounded_tables`: with exact angles, whether the rotary module returns tables of 16 bits itself. `norm`:
    the `HeadNorm` of the modules that a rewritten method gives as `norms`.
    """
    by_model = _by_model(function_layout, exact, rounded_tables)
    rotate = _make_rotate(function_layout, exact, by_model, norm)

    def rotate_one(x: Any, cos: Any, sin: Any, unsqueeze_dim: int = 1, norms: Any = ()) -> Any:
        y = rotate((x,), cos, sin, unsqueeze_dim, norms)
        return y[0] if isinstance(y, tuple) else y

    # Some models give q alone, and the tables by name.
    def rotate_two(
        q: Any, k: Any = None, cos: Any = None, sin: Any = None, unsqueeze_dim: int = 1, norms: Any = ()
    ) -> Any:
        if k is None:
            return by_model((q, k), cos, sin, unsqueeze_dim)
        return rotate((q, k), cos, sin, unsqueeze_dim, norms)

    def with_position_ids(
        q: Any, k: Any, cos: Any, sin: Any, position_ids: Any = None, unsqueeze_dim: int = 1, norms: Any = ()
    ) -> Any:
        return rotate_two(q, k, cos, sin, unsqueeze_dim, norms)

    if function_layout.is_single:
        return rotate_one
    return with_position_ids if "position_ids" in parameters(function_layout.function) else rotate_two


def _make_rotate(function_layout: RotaryFunction, exact: bool, by_model: Function, norm: Any) -> Function:
    """Return a function that rotates a tuple of arrays, by the model's where our rotation does not fit.

    `norms` are the modules that norm the arrays before; where one pass does not fit, they are called. So they
    are in compiled code: the compiler joins their operations with the rotation.
    """
    decide = _make_decide(function_layout, exact)
    recall = _remember(decide)
    unarranged, is_negated = UNARRANGED[function_layout.arrangement], function_layout.sign == -1

    def rotate(xs: tuple[Any, ...], cos: Any, sin: Any, unsqueeze_dim: int, norms: Any) -> Any:
        # Sizes of other tensors, and of recorded calls, may be symbols, which no memo can hold.
        recorded = is_recorded()
        is_plain = type(xs[0]) is type(cos) is torch.Tensor and not recorded
        one_pass = norm.of_call(norms, xs) if norms and is_plain else None
        if norms and one_pass is None:
            xs = norm.run(norms, xs)
        decision = (recall if is_plain else decide)(xs, cos, unsqueeze_dim)
        if decision is None:
            return by_model(xs if one_pass is None else norm.run(norms, xs), cos, sin, unsqueeze_dim)
        layout, seq_axis = decision
        sin = unarranged(sin)
        tables = Tables(unarranged(cos), -sin if is_negated else sin, layout)
        if one_pass is not None:
            return _dispatch.attention_inputs(xs, tables, (seq_axis,), one_pass, None)[0]
        if recorded and torch.compiler.is_compiling() and _operators.serves(*xs, tables.cos, tables.sin):
            return _operators.rotate_by_operator(xs, tables, seq_axis, follows_norm=bool(norms))
        return _dispatch.rotate(xs, tables, (seq_axis,))

    return rotate


def _remember(decide: Function) -> Function:
    """Return `decide` with a memo of its decisions: all layers make calls of the same shapes.

    A full memo is kept as it is: calls of one token, which are the most frequent, have the same shapes.
    """
    decisions: dict[Any, Any] = {}

    def recall(xs: tuple[Any, ...], cos: Any, unsqueeze_dim: int) -> Any:
        facts = _facts(xs, cos, unsqueeze_dim)
        if facts in decisions:
            return decisions[facts]
        decision = decide(xs, cos, unsqueeze_dim)
        if len(decisions) < DECISIONS:
            decisions[facts] = decision
        return decision

    return recall


def _facts(xs: tuple[Any, ...], cos: Any, unsqueeze_dim: int) -> tuple[Any, ...]:
    """Return all that `decide` reads."""
    facts = [unsqueeze_dim, cos.shape, cos.dtype]
    for x in xs:
        facts += x.shape, x.dtype, x.stride(-1)
    return tuple(facts)


def _make_decide(function_layout: RotaryFunction, exact: bool) -> Function:
    """Return a function that returns the layout and the axis of the positions of a call.

    It returns None where our rotation does not fit the call.
    """
    is_supported = _is_supported if exact else _is_supported_in_float32
    unarranged = UNARRANGED[function_layout.arrangement]
    fixed_axis = function_layout.seq_axis

    def decide(xs: tuple[Any, ...], cos: Any, unsqueeze_dim: int) -> tuple[Layout, int] | None:
        axis, first = fixed_axis or seq_axis_of(cos.ndim, unsqueeze_dim), xs[0]
        if axis is None:
            return None
        for x in xs:
            if x.shape[axis] != first.shape[axis] or x.shape[-1] != first.shape[-1]:
                return None
            if not is_supported(x, cos):
                return None
        return _layout_of(function_layout, first, unarranged(cos)), axis

    return decide


def _by_model(function_layout: RotaryFunction, exact: bool, rounded_tables: bool) -> Function:
    """Return a function that calls the model's."""
    function = function_layout.function
    if exact:
        function = keep_input_dtype(function, rounded_tables)
    takes_dim = function_layout.seq_axis is None

    def by_model(arrays: tuple[Any, ...], cos: Any, sin: Any, unsqueeze_dim: int) -> Any:
        return function(*arrays, cos, sin, **({"unsqueeze_dim": unsqueeze_dim} if takes_dim else {}))

    return by_model


def _is_supported(x: Any, cos: Any) -> bool:
    """Return whether tables of (S, width) or (B, S, width) have the compute dtype, and line up with x."""
    ndim, dtype = cos.ndim, cos.dtype
    return bool(
        (ndim == 2 or (ndim == 3 and x.ndim == 4 and (cos.shape[0] == 1 or cos.shape[0] == x.shape[0])))
        and (x.dtype is not torch.float64 if dtype is torch.float32 else dtype is x.dtype is torch.float64)
    )


def _is_supported_in_float32(x: Any, cos: Any) -> bool:
    """Return whether our rotation has the model's bits too: float32 only, and adjacent features.

    A model that rotates a part of the features returns contiguous arrays, ours arrays with x's strides; with
    other strides the attention that follows sums in another order.
    """
    float32 = torch.float32
    return x.dtype is float32 and cos.dtype is float32 and x.stride(-1) == 1 and _is_supported(x, cos)


def seq_axis_of(ndim: int, unsqueeze_dim: int) -> int | None:
    """Return the axis of the positions, for tables of `ndim` axes that get one more axis."""
    dim = unsqueeze_dim if unsqueeze_dim >= 0 else unsqueeze_dim + ndim + 1
    return {ndim - 1: -3, ndim - 2: -2}.get(dim)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


_JIT: Any = torch.jit  # its type lacks is_tracing


def is_recorded() -> bool:
    """Return whether the call is compiled, exported or traced, and the value of a position not known."""
    return torch.compiler.is_compiling() or bool(_JIT.is_tracing())


def keep_input_dtype(function: Function, rounded_tables: bool = False) -> Function:
    """Return a function that calls another with float32 tables, and keeps the dtype of the input."""
    cos_of = _argument_reader(function, "cos")

    def rounded(first: Any, *args: Any, **options: Any) -> Any:
        if not rounded_tables:
            _refuse_cast(cos_of((first, *args), options))
        y, dtype = function(first, *args, **options), first.dtype
        if isinstance(y, tuple):
            return tuple(x.to(dtype) if isinstance(x, torch.Tensor) else x for x in y)
        return y.to(dtype)

    return rounded


def _argument_reader(function: Function, name: str) -> Function:
    """Return a function of the arguments and options of a call that returns the argument `name`, or None."""
    index = parameters(function).index(name)
    return lambda args, options: args[index] if index < len(args) else options.get(name)


def check_tables_given(method: Function) -> Function:
    """Return a method that raises if its `position_embeddings` have 16 bits.

    For methods that cast them to float32 themselves (MLCD), where the rotary function gets float32 tables.
    """
    tables_of = _argument_reader(method, "position_embeddings")

    @functools.wraps(method)
    def checked(*args: Any, **options: Any) -> Any:
        tables = tables_of(args, options)
        if isinstance(tables, tuple | list):
            _refuse_cast(tables[0])
        return method(*args, **options)

    return checked


def _refuse_cast(cos: Any) -> None:
    if not isinstance(cos, torch.Tensor) or cos.dtype not in NARROW:
        return
    dtype = dtype_name(cos.dtype)
    raise PatchError(
        f"a layer got cos and sin in {dtype}, and the patched rotary module made them in float32. If your "
        "code casts them on the way, leave out that cast. If mixed precision of FSDP casts them with the "
        f"inputs of a layer, shard the layers with MixedPrecisionPolicy(param_dtype=torch.{dtype}, "
        "cast_forward_inputs=False), for FSDP1 with MixedPrecision of the same arguments, and leave the cast "
        "of x to the model around them. Or keep the model's own numbers: patch with angles='float32'."
    )
