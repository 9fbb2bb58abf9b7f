"""The module of attention's inputs: norm, rotation and the write into caches, in one pass."""

from typing import Any

import torch

from rope_array._array_api.norm import checked_norm
from rope_array._attention import attention_inputs
from rope_array._errors import SpecError, describe
from rope_array._rope import RoPE
from rope_array._rotation import Rotation
from rope_array._spec.validation import truth

from ._rotary import RotaryEmbedding


class AttentionInputs(RotaryEmbedding):
    """RMSNorm of each head of q and k, their rotation, and the write of k and v into caches, in one pass.

    The module has the two weights of the norm as parameters: `q_weight` and `k_weight`. It calls
    `rope_array.attention_inputs`, whose documentation has the arithmetic.

    Parameters
    ----------
    rope : RoPE
        The embedding, as for `RotaryEmbedding`.
    norm : bool
        Whether q and k are normed. Without a norm the module has no parameters.
    heads : (int, int), optional
        The numbers of heads of q and k, for weights of each head, of shape (heads, head_dim). By default all
        heads share a weight of shape (head_dim,).
    eps, offset, rounding
        As in `rope_array.attention_inputs`. The parameters begin at ``1 - offset``.
    seq_axis, tables
        As for `RotaryEmbedding`.
    device, dtype
        Of the parameters.

    Raises
    ------
    SpecError
        As for `RotaryEmbedding`; or an argument of the norm has no meaning.

    Examples
    --------
    >>> import torch
    >>> import rope_array as ra
    >>> inputs = ra.torch.AttentionInputs(ra.RoPE(head_dim=64, pairing="half"), rounding="steps")
    >>> q, k = torch.randn(2, 8, 5, 64), torch.randn(2, 2, 5, 64)       # 8 heads of queries, 2 of keys
    >>> q, k = inputs(q, k, torch.arange(5))
    >>> [name for name, _ in inputs.named_parameters()]
    ['q_weight', 'k_weight']
    """

    def __init__(
        self,
        rope: RoPE,
        *,
        norm: bool = True,
        heads: tuple[int, int] | None = None,
        eps: float = 1e-6,
        offset: float = 0.0,
        rounding: str = "none",
        seq_axis: int = -2,
        tables: int | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(rope, seq_axis=seq_axis, tables=tables)
        _, self.eps, self.offset, self.rounding = checked_norm(((None, None), eps, offset, rounding), 2)
        is_pair = isinstance(heads, tuple) and len(heads) == 2
        if heads is not None and not (is_pair and all(type(count) is int and count > 0 for count in heads)):
            raise SpecError(f"heads is {describe(heads)}; give the numbers of heads of q and of k, (8, 2).")
        if not truth("norm", norm) and heads is not None:
            raise SpecError(f"heads is {heads}, and norm is False; omit one of them.")
        for name, count in zip(("q_weight", "k_weight"), heads or (None, None), strict=True):
            shape = (rope.head_dim,) if count is None else (count, rope.head_dim)
            weight = torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype)) if norm else None
            self.register_parameter(name, weight)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the weights so that the norm multiplies by 1.

        Returns
        -------
        None
            Both weights are ``1 - offset``.

        Examples
        --------
        >>> import torch
        >>> import rope_array as ra
        >>> inputs = ra.torch.AttentionInputs(ra.RoPE(4), device="meta").to_empty(device="cpu")
        >>> inputs.reset_parameters()
        >>> inputs.q_weight.detach()
        tensor([1., 1., 1., 1.])
        """
        for weight in self.parameters():
            torch.nn.init.constant_(weight, 1 - self.offset)

    def extra_repr(self) -> str:
        """Return the rope, and the arguments of the norm.

        Returns
        -------
        str
            The text in the module's repr.

        Examples
        --------
        >>> import rope_array as ra
        >>> ra.torch.AttentionInputs(ra.RoPE(4), norm=False)
        AttentionInputs(RoPE(head_dim=4), norm=False)
        """
        weights: Any = self.q_weight, self.k_weight
        if weights[0] is None:
            return f"{super().extra_repr()}, norm=False"
        heads = f", heads={tuple(map(len, weights))}" if weights[0].ndim == 2 else ""
        norm = f"{heads}, eps={self.eps}, offset={self.offset}, rounding={self.rounding!r}"
        return super().extra_repr() + norm

    def forward(self, q: Any, k: Any, positions: Any, v: Any = None, **options: Any) -> Any:  # type: ignore[override]
        """Make q and k for attention, and write k and v into caches.

        Parameters
        ----------
        q, k : Tensor
            Queries and keys, as for `RotaryEmbedding`. k may be None.
        positions : Tensor or Rotation
            Positions of the tokens, as for `RotaryEmbedding`; or the Rotation that `rotation` has made once
            for all layers.
        v : Tensor, optional
            Values for the cache.
        **options
            `cache`, `slots`, `scales`, `cache_seq_axis`, `unique_slots` and `out` of
            `rope_array.attention_inputs`.

        Returns
        -------
        (Tensor, Tensor)
            q and k, normed and rotated; with `cache` also the caches, as a third value.

        Raises
        ------
        ArrayTypeError, ShapeError, PositionError, SpecError
            As in `rope_array.attention_inputs`; or there is one position, and q or k has several tokens.

        Examples
        --------
        >>> import torch
        >>> import rope_array as ra
        >>> inputs, positions = ra.torch.AttentionInputs(ra.RoPE(64), seq_axis=-3), torch.arange(5)
        >>> q, k, v = torch.randn(5, 8, 64), torch.randn(5, 2, 64), torch.randn(5, 2, 64)
        >>> pages = torch.zeros(2, 3, 16, 2, 64)                        # of k and v: 3 pages of 16 slots
        >>> with torch.inference_mode():
        ...     q, k, cache = inputs(q, k, positions, v, cache=tuple(pages), slots=torch.arange(20, 25))
        >>> bool((pages[1, 1, 4:9] == v).all())
        True
        """
        is_rotation = isinstance(positions, Rotation)
        if not is_rotation:
            self._check_each_token(q, q if k is None else k, positions)
            if self._reads_tables(positions, q):
                positions, is_rotation = self.rotation(positions, like=q), True
        own: dict[str, Any] = {"norm": None, "eps": self.eps, "offset": 0.0, "rounding": "none"}
        if self.q_weight is not None:
            weights = self.q_weight, self.k_weight
            own |= {"norm": weights, "offset": self.offset, "rounding": self.rounding}
        rope = None if is_rotation else self.rope
        # A name of `own` among the options is an error of Python's.
        return attention_inputs(q, k, positions, rope, v=v, seq_axis=self.seq_axis, **own, **options)
