"""The calls that all modules share, and the module of a fixed rope."""

import operator
from abc import ABC, abstractmethod
from typing import Any, NoReturn

import torch

from rope_array._array_api.position_input import parse_host
from rope_array._backends.torch._library import is_exported
from rope_array._errors import ArrayTypeError, RoPEError, ShapeError, SpecError, describe, short
from rope_array._rope import RoPE
from rope_array._rotation import Rotation
from rope_array._spec.validation import integer, truth

from . import _exported


class RotaryModule(torch.nn.Module, ABC):  # type: ignore[misc,unused-ignore]
    """The two calls of a module, and its rope: a plain attribute that no cast or checkpoint sees."""

    tables: int | None = None
    onnx_operator = False

    def __init__(self, rope: RoPE, seq_axis: int) -> None:
        super().__init__()
        if not isinstance(rope, RoPE):
            raise SpecError(
                f"rope is {describe(rope)}; give a RoPE: ra.RoPE(head_dim=64), or "
                "ra.RoPE.from_config(config) for the config of a model."
            )
        _ = rope.frequencies  # raises SpecError if the scaling needs rope.at_length first
        self.rope = rope
        self.seq_axis = _checked_axis(seq_axis)

    def extra_repr(self) -> str:
        """Return the rope, and the other arguments unless they are the defaults."""
        axis = f", seq_axis={self.seq_axis}" if self.seq_axis != -2 else ""
        tables = f", tables={self.tables}" if self.tables is not None else ""
        return repr(self.rope) + axis + tables + ", onnx_operator=True" * self.onnx_operator

    # position_ids by position too, as PyTorch's older ONNX exporter passes every default.
    def forward(self, q: Any, k: Any = None, positions: Any = None, position_ids: Any = None) -> Any:
        """Rotate q and k, or return cos and sin.

        Parameters
        ----------
        q, k : Tensor
            ``module(q, k, positions)``: queries and keys, of shape (B, heads, S, head_dim), or (B, S, heads,
            head_dim) with ``seq_axis=-3``. The numbers of heads may differ.
        positions : Tensor or Rotation
            Positions of the tokens, as in `rope_array.apply`: (S,), (B, S), or a range or a list. A number is
            a position, not an offset, so it serves one token only; the positions from an offset on are
            ``range(offset, offset + S)``. Or cos and sin: a Rotation, or the tuple of two tensors that
            torch.jit.trace makes of one.
        position_ids : Tensor
            ``module(x, position_ids)``: positions in the call of Hugging Face's models. As the second
            argument they are integers; by name they may be floats too.

        Returns
        -------
        (Tensor, Tensor)
            q and k rotated; or cos and sin of shape position_ids.shape + (rotary_dim,) and x's dtype.

        Raises
        ------
        ArrayTypeError
            Positions are missing, an argument is in the place of another, or as in `rope_array.apply`.
        ShapeError, PositionError
            As in `rope_array.apply`; or there is one position, and q or k has several tokens.
        """
        by_name = position_ids is not None
        if _is_real(q) and _is_real(k) and positions is not None and not by_name:
            if isinstance(positions, tuple) and len(positions) == 2 and all([_is_real(p) for p in positions]):
                is_plain = not isinstance(positions, Rotation)
                rotation: Any = self.rope.rotation_from(*positions) if is_plain else positions
                return self._apply_tables(rotation, (q, k))
            self._check_each_token(q, k, positions)
            return self._rotate(q, k, positions)
        if _is_real(q) and positions is None and (k is None if by_name else _is_integer(k)):
            return self.rotation(position_ids if by_name else k, like=q).full_width(q.dtype)
        mistake = _describe_mistake(q, k, positions, position_ids, self.seq_axis)
        raise ArrayTypeError(f"{mistake} {_calls(self.seq_axis)}")

    @abstractmethod
    def rotation(self, positions: Any, *, like: Any) -> Rotation:
        """Make cos and sin once, for all layers of a forward pass."""

    def _rotate(self, q: Any, k: Any, positions: Any) -> Any:
        return self._apply_tables(self.rotation(positions, like=q), (q, k))

    def _apply_tables(self, rotation: Rotation, xs: tuple[Any, ...]) -> Any:
        rotated = _exported.rotate_as_operator(rotation, xs, self.seq_axis) if self.onnx_operator else None
        return rotation.apply(xs, seq_axis=self.seq_axis) if rotated is None else rotated

    def _check_each_token(self, q: Any, k: Any, positions: Any) -> None:
        """Raise for one position of several tokens, which `apply` broadcasts.

        Scores of q and k with equal positions do not depend on them, so the caller means something else: an
        offset, which other libraries take there, or the positions of q alone.
        """
        shape = _shape_of(positions)
        if shape is not None and self._has_coordinates():
            shape = shape[:-1] if shape else None
        if shape is None:
            return  # refused by `apply`
        count = _without_warning(shape[-1]) if shape else 1
        for x in (q, k):
            tokens = _without_warning(_size(x, self.seq_axis))
            # Compare with tokens first: torch.export may know that two sizes are equal, and not if one is 1.
            if count != tokens and count == 1 and tokens > 1:
                raise _one_position(q, k, positions, self.seq_axis, self._has_coordinates())

    def _has_coordinates(self) -> bool:
        """Return whether the last axis of positions holds coordinates."""
        return self.rope.axes is not None

    def __prepare_scriptable__(self) -> NoReturn:
        """Refuse torch.jit.script, which calls this method before it compiles."""
        raise RoPEError(
            f"{type(self).__name__} cannot be compiled by torch.jit.script, which does not support RoPE "
            "objects. Use torch.compile or torch.export, or torch.jit.trace with example tensors."
        )


class RotaryEmbedding(RotaryModule):
    """A rotary embedding as a module without parameters and without buffers.

    ``module(q, k, positions)`` returns q and k rotated. ``module(x, position_ids)`` returns cos and sin, as
    the rotary modules of Hugging Face's models do. The module has nothing that ``.to(torch.bfloat16)`` could
    round, that a checkpoint could hold, or that initialisation on the device "meta" could lose.

    Parameters
    ----------
    rope : RoPE
        The embedding in plain numbers. If its scaling depends on the length, call ``rope.at_length`` first.
    seq_axis : int
        The axis of q and k along which positions run: -2 for (B, heads, S, head_dim), -3 for (B, S, heads,
        head_dim).
    tables : int, optional
        A length. A program that torch.export, torch.jit.trace or an ONNX exporter records reads exact tables
        of the positions 0 to tables - 1, which takes a sixth of the operations of exact angles, or fewer.
        Eager and compiled calls compute angles as without tables. Results agree within the contract.
    onnx_operator : bool
        Whether the newer ONNX exporter records ONNX's operator RotaryEmbedding, which needs
        ``opset_version=23``. It records plain operations for float64, for q and k that have not four axes,
        and for a rope with `rotary_start`, `out_pairing` or several blocks. ``module(x, position_ids)``
        returns cos and sin, and the model rotates.

    Raises
    ------
    SpecError
        `rope` is no `RoPE`, its scaling needs ``rope.at_length`` first, or another argument has no meaning.

    Notes
    -----
    With `tables`, positions are integers. Outside the tables positions on the host raise PositionError; a
    tensor's are not read, and a recorded program returns NaN. The module has no tables itself: they are made
    when a program is recorded.

    Examples
    --------
    >>> import torch
    >>> import rope_array as ra
    >>> rotary = ra.torch.RotaryEmbedding(ra.RoPE(head_dim=64, base=500_000.0, pairing="half"))
    >>> q, k = torch.randn(2, 8, 5, 64), torch.randn(2, 2, 5, 64)       # 8 heads of queries, 2 of keys
    >>> q, k = rotary(q, k, torch.arange(5))
    >>> q.shape, k.shape
    (torch.Size([2, 8, 5, 64]), torch.Size([2, 2, 5, 64]))
    >>> cos, sin = rotary(torch.randn(2, 5, 512), torch.arange(5)[None])
    >>> cos.shape
    torch.Size([1, 5, 64])
    """

    def __init__(
        self, rope: RoPE, *, seq_axis: int = -2, tables: int | None = None, onnx_operator: bool = False
    ) -> None:
        super().__init__(rope, seq_axis)
        self.tables = None if tables is None else integer("tables", tables, 1)
        longest = 2**31 if rope.max_position is None else int(rope.max_position) + 1
        if self.tables is not None and self.tables > longest:
            raise SpecError(
                f"tables is {tables}, and the rope's positions end at {longest - 1}; give up to {longest}."
            )
        self.onnx_operator = truth("onnx_operator", onnx_operator)

    def rotation(self, positions: Any, *, like: Any) -> Rotation:
        """Make cos and sin once, for all layers of a forward pass: `RoPE.rotation` of the rope.

        Parameters
        ----------
        positions
            Positions of the tokens, as in `rope_array.apply`.
        like : Tensor
            A tensor as it will be rotated: it sets the device, and float64 for float64.

        Returns
        -------
        Rotation
            The rotation: ``rotation.apply((q, k))`` in each layer, with ``seq_axis=-3`` for (B, S, heads,
            head_dim).

        Examples
        --------
        >>> import torch
        >>> import rope_array as ra
        >>> rotary, q = ra.torch.RotaryEmbedding(ra.RoPE(64)), torch.randn(2, 8, 5, 64)
        >>> rotation = rotary.rotation(torch.arange(5), like=q)
        >>> torch.equal(rotation.apply(q), rotary(q, q, torch.arange(5))[0])
        True
        """
        if self.tables is not None and self._reads_tables(positions, like):
            return _exported.rotation_by_tables(self.rope, self.tables, positions, like)
        return self.rope.rotation(positions, like=like)

    def _reads_tables(self, positions: Any, like: Any) -> bool:
        """Return whether a program with tables is recorded; raise for positions without a row."""
        if self.tables is None or not self.rope.rotary_dim:
            return False
        _exported.check_rows(positions, self.tables, like)
        return is_exported()

    def _rotate(self, q: Any, k: Any, positions: Any) -> Any:
        if self._reads_tables(positions, q) or (self.onnx_operator and is_exported()):
            return super()._rotate(q, k, positions)
        return self.rope.apply((q, k), positions, seq_axis=self.seq_axis)


def _is_real(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _is_integer(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return False
    return not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)


def _shape_of(positions: Any) -> Any:
    """Return the shape of positions; None for values that are none."""
    if isinstance(positions, bool):
        return None
    parsed = parse_host(positions)
    return getattr(positions, "shape", None) if parsed is None else parsed.shape


def _size(x: Any, seq_axis: int) -> Any:
    """Return the size of the axis of tokens; 1 if x has no such axis."""
    return x.shape[seq_axis] if -x.ndim <= seq_axis < x.ndim - 1 else 1


def _without_warning(size: Any) -> Any:
    """Return a size as an int. For torch.jit.trace it is a tensor, and PyTorch warns of each comparison."""
    return operator.index(size) if isinstance(size, torch.Tensor) else size


def _one_position(q: Any, k: Any, positions: Any, seq_axis: int, coordinates: bool) -> ShapeError:
    """Return the error for one position where q or k has several tokens, or several heads of one token."""
    size, of_k = _size(q, seq_axis), _size(k, seq_axis)
    axis = f", seq_axis={seq_axis}" if seq_axis != -2 else ""
    call = "module.rotation(positions, like=q).apply"
    text = (
        f"positions is {describe(positions)}, one position, and axis {seq_axis} of q has the size {size} and "
        f"of k {of_k}"
    )
    if size != of_k:
        return ShapeError(
            f"{text}. If these are tokens, rotate each by its own positions: {call}(q{axis}) for q, and a "
            f"second call for k. If they are heads of one token, call {call}((q, k){axis})."
        )
    if isinstance(positions, int):
        remedy = f"range({positions}, {positions + size})"
    elif isinstance(positions, range) and not coordinates:
        remedy = f"range({positions[0]}, {positions[0] + size})"
    elif coordinates:
        remedy = f"{size} positions, of the shape ({size}, coordinates)"
    elif isinstance(positions, (list, tuple)):
        remedy = f"{size} positions"
    else:
        remedy = f"positions + torch.arange(q.shape[{seq_axis}], device=q.device)"
    other_axis = ""
    if seq_axis == -2 and q.ndim > 3 and q.shape[-3] == 1:
        other_axis = " If they are heads, and axis -3 is of the tokens, make the module with seq_axis=-3."
    return ShapeError(
        f"{text}; a position is no offset.{other_axis} If these are tokens that follow one another, give "
        f"{remedy}. To "
        f"rotate all of them by one position, as heads of one token, call {call}((q, k){axis})."
    )


def _describe_mistake(q: Any, k: Any, positions: Any, position_ids: Any, seq_axis: int) -> str:
    """Name the mistake in the arguments of a call, in one sentence."""
    if not _is_real(q):
        return f"the first argument is {describe(q)}; it has to be a PyTorch tensor of a real floating dtype."
    if isinstance(positions, str):
        return (
            f"the third argument is {short(positions)}, a type of layer; make a module for each type, of "
            f"ra.RoPE.from_config(config, layer_type={short(positions)})."
        )
    if position_ids is not None:
        return "position_ids is given together with k or positions; it takes x alone."
    if positions is not None:
        description = "missing" if k is None else describe(k)
        return f"k is {description}; it has to be a PyTorch tensor of a real floating dtype."
    if _is_real(k) and k.ndim < q.ndim:
        small = ", and 16-bit floats skip integers" if k.element_size() == 2 else ""
        return (
            f"the second of two arguments is {describe(k)}{small}; position_ids has to be an integer tensor."
        )
    if k is None or _is_real(k):
        start = f"torch.arange(q.shape[{seq_axis}], device=q.device)"
        return f"positions are missing; for sequences from their start they are {start}."
    return f"the second of two arguments is {describe(k)}; position_ids has to be an integer tensor."


def _calls(seq_axis: int) -> str:
    """List the calls of a module, in one sentence. A Rotation does not know the module's `seq_axis`."""
    axis = f", seq_axis={seq_axis}" if seq_axis != -2 else ""
    return (
        "Call module(q, k, positions) for q and k rotated, module(x, position_ids) for cos and sin, or "
        f"module.rotation(positions, like=q).apply(q{axis}) for one tensor."
    )


def _checked_axis(seq_axis: Any) -> int:
    """Return `seq_axis` as a Python int; raise if it is no int, or the axis of the features."""
    try:
        axis = operator.index(seq_axis)
    except TypeError:
        axis = -1
    if axis == -1 or isinstance(seq_axis, bool):
        raise SpecError(
            f"seq_axis is {short(seq_axis)}; give an int, the axis of positions: -2 for (batch, heads, "
            "positions, features), -3 for (batch, positions, heads, features)."
        )
    return axis
