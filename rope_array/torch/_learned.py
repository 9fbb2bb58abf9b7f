"""Modules of learned frequencies: a factor for each pair, of all heads or of each, and mixed frequencies."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from rope_array._array_api.source import Positions
from rope_array._errors import ArrayTypeError, ShapeError, SpecError, describe
from rope_array._rope import RoPE
from rope_array._rotation import Rotation
from rope_array._spec.spec import require_plan
from rope_array._spec.validation import integer

from ._rotary import RotaryModule


class LearnedModule(RotaryModule):
    """A module whose parameters never become float16 or bfloat16 by a cast, and may be of each head."""

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
        keep = partial(_without_narrowing, fn)
        return super()._apply(keep, recurse)  # type: ignore[no-untyped-call,unused-ignore]

    @abstractmethod
    def _parameter(self) -> Any:
        """Return the parameter, of shape (heads, ..., pairs) if each head has frequencies of its own."""

    def extra_repr(self) -> str:
        """Return the rope and the other arguments."""
        sizes = zip(("heads", "coordinates"), self._parameter().shape[:-1], strict=False)
        return super().extra_repr() + "".join([f", {name}={size}" for name, size in sizes])

    def _rotate(self, q: Any, k: Any, positions: Any) -> Any:
        for name, x in (("q", q), ("k", k)):
            self._check_heads(name, x)
        return super()._rotate(q, k, positions)

    def _check_heads(self, name: str, x: Any) -> None:
        """Raise if x has another number of heads. The rope's checks refuse other widths and fewer axes."""
        if x.ndim < 3 or x.shape[-1] != self.rope.head_dim:
            return
        heads = x.shape[-3 if self.seq_axis in (-2, x.ndim - 2) else -2]
        count = self._parameter().shape[0] if self._parameter().ndim > 1 else 1
        if count == 1 or count == heads:  # Dynamo finds no symbol among the items of a tuple
            return
        remedy = (
            f"make the module with heads={heads}, and repeat k's rotation for q: see "
            "'Frequencies of each head' in docs/in-my-model/learned.md."
            if name == "k"
            else f"make the module with heads={heads}, or with the seq_axis of your tensors."
        )
        raise ShapeError(f"the module has frequencies for {count} heads, and {name} has {heads}; {remedy}")


class LearnedRotaryEmbedding(LearnedModule):
    """A rotary embedding with learned frequencies, initialised from a rope.

    The frequency of pair i is ``rope.frequencies[i] * exp(log_scale[i])`` [1]_. The parameter `log_scale`
    starts at 0, where the module rotates exactly as `RotaryEmbedding`. A step of the optimizer changes low
    and high frequencies by similar ratios, and weight decay pulls them towards the rope's. q, k, `log_scale`
    and positions of floats get gradients.

    Parameters
    ----------
    rope : RoPE
        Initial frequencies, the pairing and the amplitude. A pair of frequency 0 stays unrotated.
    heads : int, optional
        Number of heads, the same in q and k, if each head learns frequencies of its own.
    seq_axis : int
        As in `RotaryEmbedding`.
    device : device, optional
        The device of the parameter.

    Attributes
    ----------
    log_scale : torch.nn.Parameter
        Shape (rotary_dim/2,), or (heads, rotary_dim/2), float32. A cast of the model to 16 bits leaves it
        float32; ``.double()`` does not.
    frequencies : Tensor
        The frequency of each pair as it is now, radians per position, of the shape of `log_scale`, in float64
        where the device has it: a position multiplies the error of rounding.

    Raises
    ------
    SpecError
        `rope` is no `RoPE`, its scaling needs ``rope.at_length`` first, `heads` is below 1, or `seq_axis` is
        no int.

    Notes
    -----
    The frequency is the rope's own, a real number, plus ``rope.frequencies[i] * expm1(log_scale[i])``, which
    is computed in float64 where the device has it. The angles of this sum are exact, as those of a rope.

    A checkpoint with ``use_reentrant=True`` takes no gradient of a tuple. Pass it cos and sin of `rotation`
    as arguments of their own, and call ``rope.rotation_from(cos, sin)`` inside.

    References
    ----------
    .. [1] "LeRoPE" in `MistralLarge4TextRotaryEmbedding` of transformers.

    Examples
    --------
    >>> import torch
    >>> import rope_array as ra
    >>> rotary = ra.torch.LearnedRotaryEmbedding(ra.RoPE(head_dim=8, pairing="half"))
    >>> q = k = torch.randn(2, 4, 5, 8)
    >>> q, k = rotary(q, k, torch.arange(5))
    >>> q.square().sum(-1).mul(k[..., 0]).sum().backward()
    >>> rotary.log_scale.grad.shape
    torch.Size([4])
    >>> ra.torch.LearnedRotaryEmbedding(ra.RoPE(head_dim=8), heads=4).frequencies.shape
    torch.Size([4, 4])
    """

    def __init__(
        self, rope: RoPE, *, heads: int | None = None, seq_axis: int = -2, device: Any = None
    ) -> None:
        super().__init__(rope, seq_axis)
        of_heads = () if heads is None else (integer("heads", heads, 1),)
        shape = *of_heads, rope.rotary_dim // 2
        self.log_scale = torch.nn.Parameter(torch.empty(shape, dtype=torch.float32, device=device))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the frequencies to the rope's. Call it after initialisation on the device "meta".

        Returns
        -------
        None
            `log_scale` is 0.

        Examples
        --------
        >>> import torch
        >>> import rope_array as ra
        >>> with torch.device("meta"):
        ...     rotary = ra.torch.LearnedRotaryEmbedding(ra.RoPE(head_dim=4))
        >>> rotary.to_empty(device="cpu").reset_parameters()
        >>> rotary.frequencies.tolist() == [1.0, 0.01]
        True
        """
        torch.nn.init.zeros_(self.log_scale)

    @property
    def frequencies(self) -> Any:
        """The frequency of each pair, radians per position: a tensor of the shape of `log_scale`."""
        start, change = _frequency_parts(self.rope, _checked_parameter("log_scale", self.log_scale))
        return start + change

    def to_rope(self) -> RoPE:
        """Return a rope with the frequencies as they are now, for use on every array library.

        Returns
        -------
        RoPE
            The rope with `inv_freq` in place of base and scaling.

        Raises
        ------
        SpecError
            Each head has frequencies of its own.

        Examples
        --------
        >>> import rope_array as ra
        >>> rotary = ra.torch.LearnedRotaryEmbedding(ra.RoPE(head_dim=4))
        >>> rotary.to_rope().frequencies
        (1.0, 0.01)
        """
        if self.log_scale.ndim == 2:
            raise SpecError(
                f"the module has frequencies for {len(self.log_scale)} heads, a RoPE one for each pair; "
                "call module.rotation, or pass module.frequencies as inv_freq of rope.rotation."
            )
        _check_values("log_scale", self.log_scale, None)
        omegas = tuple(self.frequencies.detach().tolist())
        return replace(self.rope, inv_freq=omegas, scaling=None, attention_factor=self.rope.amplitude)

    def rotation(self, positions: Any, *, like: Any) -> Rotation:
        """Make cos and sin once, for all layers of a forward pass, with gradients.

        Parameters
        ----------
        positions, like
            As in `RotaryEmbedding.rotation`.

        Returns
        -------
        Rotation
            The rotation by the frequencies as they are now. With `heads`, tables of shape (..., heads, S,
            rotary_dim/2), and `like` has the axis of heads.

        Examples
        --------
        >>> import torch
        >>> import rope_array as ra
        >>> rotary, q = ra.torch.LearnedRotaryEmbedding(ra.RoPE(64)), torch.randn(2, 8, 5, 64)
        >>> rotary.rotation(torch.arange(5), like=q).cos.requires_grad
        True
        """
        _check_values("log_scale", self.log_scale, like)
        return scaled_rotation(self.rope, positions, _checked_parameter("log_scale", self.log_scale), like)

    def _parameter(self) -> Any:
        return self.log_scale


def scaled_rotation(rope: RoPE, positions: Any, log_scale: Any, like: Any) -> Rotation:
    """Make the rotation by the frequencies of a rope times exp(log_scale)."""
    _, change = _frequency_parts(rope, log_scale)
    return rope._rotation(Positions(positions, require_plan(rope), change), like)


def _frequency_parts(rope: RoPE, log_scale: Any) -> tuple[Any, Any]:
    """Return a rope's frequencies and their learned changes, in float64 where the device has it."""
    log_scale = log_scale.to(torch.float32 if log_scale.device.type == "mps" else torch.float64)
    start = torch.tensor(rope.frequencies, dtype=log_scale.dtype, device=log_scale.device)
    return start, start * _expm1(log_scale)


_JIT: Any = torch.jit  # its type lacks is_tracing


def _expm1(x: Any) -> Any:
    """Return exp(x) - 1, without cancellation."""
    # Dynamo evaluates is_compiling, and skips the rest. PyTorch's older ONNX exporter has no expm1.
    if not torch.compiler.is_compiling() and _JIT.is_tracing():
        return torch.tanh(0.5 * x) * (x.exp() + 1.0)
    return x.expm1()


class MixedRotaryEmbedding(LearnedModule):
    """Learned frequencies for each head and coordinate: RoPE-ViT's mixed form, for images and video [1]_.

    The angle of pair i in head h at coordinates p is the sum of p_a·inv_freq[h, a, i] over coordinates a. So
    each pair of each head has its own direction. The directions are random at first, and the lengths of these
    vectors are the frequencies of the rope. q, k, `inv_freq` and positions of floats get gradients.

    Parameters
    ----------
    rope : RoPE
        Initial lengths of the frequency vectors, the pairing and the amplitude. RoPE-ViT has base 10 for
        mixed frequencies. Without `axes`.
    heads : int
        Number of heads, the same in q and k.
    coordinates : int
        Number of coordinates of a position: 2 for an image's patches.
    seq_axis : int
        As in `RotaryEmbedding`.
    device : device, optional
        The device of the parameter.

    Attributes
    ----------
    inv_freq : torch.nn.Parameter
        Shape (heads, coordinates, rotary_dim/2), float32, radians per unit of a coordinate. A cast of the
        model to 16 bits leaves it float32; ``.double()`` does not. Train it without weight decay, which would
        pull it towards no rotation.

    Raises
    ------
    SpecError
        `rope` is no `RoPE` or has `axes`, a number is below 1, or `seq_axis` is no int.

    References
    ----------
    .. [1] Heo et al., "Rotary Position Embedding for Vision Transformer", arXiv 2403.13298, eq. 9.

    Examples
    --------
    >>> import torch
    >>> import rope_array as ra
    >>> rotary = ra.torch.MixedRotaryEmbedding(ra.RoPE(head_dim=8, base=10.0), heads=3)
    >>> patches = torch.cartesian_prod(torch.arange(4), torch.arange(4))       # (16, 2): rows and columns
    >>> q = k = torch.randn(1, 3, 16, 8)
    >>> rotary(q, k, patches)[0].shape, rotary.inv_freq.shape
    (torch.Size([1, 3, 16, 8]), torch.Size([3, 2, 4]))
    """

    def __init__(
        self, rope: RoPE, heads: int, coordinates: int = 2, *, seq_axis: int = -2, device: Any = None
    ) -> None:
        super().__init__(rope, seq_axis)
        if rope.axes is not None:
            raise SpecError(
                "the rope has axes, one coordinate for each pair, and mixed frequencies have all coordinates "
                "in each pair; give a rope without axes, or use LearnedRotaryEmbedding."
            )
        shape = integer("heads", heads, 1), integer("coordinates", coordinates, 1), rope.rotary_dim // 2
        self._plain = replace(rope, scaling=None, attention_factor=rope.amplitude)
        self.inv_freq = torch.nn.Parameter(torch.empty(shape, dtype=torch.float32, device=device))
        self.reset_parameters()

    def _has_coordinates(self) -> bool:
        return True

    def reset_parameters(self) -> None:
        """Draw a random direction for each head and pair, with the rope's frequency as its length.

        Returns
        -------
        None
            `inv_freq` has new values.

        Examples
        --------
        >>> import rope_array as ra
        >>> rotary = ra.torch.MixedRotaryEmbedding(ra.RoPE(head_dim=4), heads=3)
        >>> rotary.reset_parameters()
        >>> [round(length, 4) for length in rotary.inv_freq.norm(dim=1)[0].tolist()]
        [1.0, 0.01]
        """
        torch.nn.init.normal_(self.inv_freq)
        with torch.no_grad():
            # Fully sharded training splits heads, so each rank has whole vectors of its heads.
            vectors = self.inv_freq.to_local() if hasattr(self.inv_freq, "to_local") else self.inv_freq
            frequencies = torch.tensor(self.rope.frequencies, dtype=vectors.dtype, device=vectors.device)
            vectors.mul_(frequencies / torch.linalg.vector_norm(vectors, dim=1, keepdim=True))

    def rotation(self, positions: Any, *, like: Any) -> Rotation:
        """Make cos and sin once, for all layers that share the frequencies, with gradients.

        Parameters
        ----------
        positions, like
            As in `RoPE.rotation_mixed`: coordinates of shape (S, coordinates) or (B, S, coordinates).

        Returns
        -------
        Rotation
            Tables of shape (..., heads, S, rotary_dim/2).

        Examples
        --------
        >>> import torch
        >>> import rope_array as ra
        >>> rotary = ra.torch.MixedRotaryEmbedding(ra.RoPE(head_dim=8, base=10.0), heads=3)
        >>> rotary.rotation([[0, 0], [0, 1]], like=torch.randn(1, 3, 2, 8)).cos.shape
        torch.Size([1, 3, 2, 4])
        """
        _check_values("inv_freq", self.inv_freq, like)
        inv_freq = _checked_parameter("inv_freq", self.inv_freq, like)
        return self._plain.rotation_mixed(positions, like=like, inv_freq=inv_freq)

    def _parameter(self) -> Any:
        return self.inv_freq


def _without_narrowing(fn: Callable[[Any], Any], tensor: Any) -> Any:
    """Return fn(tensor); if fn casts to fewer than 32 bits, the tensor in its own dtype on the new device."""
    moved = fn(tensor)
    narrowed = moved.is_floating_point() and moved.dtype.itemsize < 4 <= tensor.dtype.itemsize
    return tensor.to(moved.device) if narrowed else moved


def _check_values(name: str, parameter: Any, like: Any) -> None:
    """Raise for a parameter on the device "meta", unless `like` is there too."""
    like_on_meta = isinstance(like, torch.Tensor) and like.device.type == "meta"
    if parameter.device.type == "meta" and not like_on_meta:
        raise ArrayTypeError(
            f"{name} is on the device meta, without values; call module.to_empty(device=...), then "
            "module.reset_parameters() or load a checkpoint."
        )


def _checked_parameter(name: str, parameter: Any, like: Any = None) -> Any:
    """Return a parameter; raise if it has 16 bits, or is sharded while `like` is a plain tensor."""
    if parameter.dtype.itemsize < 4:
        raise ArrayTypeError(
            f"{name} is {describe(parameter)}; learned frequencies must stay float32, because the position "
            "multiplies their rounding error. With fully_shard, shard this module first, on its own and "
            "without param_dtype; with load_state_dict(assign=True), cast the loaded tensor to float32."
        )
    if hasattr(parameter, "to_local") and not hasattr(like, "to_local"):
        raise ArrayTypeError(
            f"{name} is a DTensor: fully_shard gathers it for module(q, k, positions) and module(x, "
            "position_ids). To call module.rotation too, call "
            'torch.distributed.fsdp.register_fsdp_forward_method(module, "rotation") after fully_shard. '
            "Anywhere else call module.unshard() before, and module.reshard() after."
        )
    return parameter
