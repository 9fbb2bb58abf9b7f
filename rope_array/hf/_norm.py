"""The RMSNorm of q and k before their rotation: found by calling a module, and given to one pass.

The names of a norm's class and attributes do not tell its arithmetic. So the module is called with random
heads, in float32 and in 16 bits, and compared with our norm for each offset and rounding.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from rope_array import _dispatch
from rope_array._array_api.source import Tables
from rope_array._internals import internal
from rope_array._spec.plan import Layout

from ._operators import has_one_pass
from ._rotary import probe_of

OFFSETS = (0.0, 1.0)
ROUNDINGS = ("norm", "steps")  # a module rounds its result: none of them matches "none"
# Of a result, relative: some roundings of float32, or one more of 16 bits near a tie.
PRECISION = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_global_hooks: Any = internal("torch.nn.modules.module._has_any_global_hook")


@dataclass(frozen=True)
class HeadNorm:
    """The arithmetic of the norms of an attention.

    Attributes
    ----------
    cls
        The class of the norm modules.
    weight
        The name of their parameter, or None for a norm without weights.
    eps
        The name of their attribute that is added to the mean of squares.
    offset, rounding
        As in `rope_array.attention_inputs`.
    """

    cls: type
    weight: str | None
    eps: str
    offset: float
    rounding: str

    def of_call(self, modules: tuple[Any, ...], xs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """Return the fields of a call's norm; None if the modules themselves have to run.

        So it is if a module is missing, is another than the module that was called, or has hooks; for arrays
        and weights of several dtypes, where the module's result has another dtype; and without a kernel.
        """
        weights: list[Any] = []
        eps: Any = None
        dtype = xs[0].dtype
        if dtype is torch.float64 or _global_hooks is None or _global_hooks():
            return None
        if not has_one_pass(xs[0].device):
            return None
        for module, x in zip(modules, xs, strict=True):
            if type(module) is not self.cls or type(x) is not torch.Tensor or x.dtype is not dtype:
                return None
            state = vars(module)
            weight = None if self.weight is None else state["_parameters"][self.weight]
            if (
                "forward" in state
                or any([state[name] for name in HOOKS])
                or eps not in (None, state[self.eps])
            ):
                return None
            if weight is not None and (
                weight.dtype is not dtype
                or type(weight) is not torch.nn.Parameter
                or weight.shape[0] != x.shape[-1]
            ):
                return None
            weights.append(weight)
            eps = state[self.eps]
        return (weights[0], weights[-1]), eps, self.offset, self.rounding

    @staticmethod
    def run(modules: tuple[Any, ...], xs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the results of the modules themselves; an array without a module as it is."""
        return tuple([x if module is None else module(x) for module, x in zip(modules, xs, strict=True)])


def find_norm(attention: Any, names: Iterable[str], memo: dict[Any, Any]) -> HeadNorm | str:
    """Return the arithmetic of an attention's norms, or the reason why the modules have to run."""
    found = {}
    for name in names:
        module = getattr(attention, name)
        head_dim, weights = getattr(attention, "head_dim", None), [p.shape for p in module.parameters()]
        values = [item for item in vars(module).items() if isinstance(item[1], int | float | str)]
        key = (type(module), head_dim, *weights, *values)
        if key not in memo:
            memo[key] = _recognise(module, head_dim)
        found[name] = memo[key]
        if isinstance(found[name], str):
            return f"{name} ({type(module).__name__}) {found[name]}"
    norms = [*dict.fromkeys(found.values())]
    return norms[0] if len(norms) == 1 else f"{' and '.join(found)} differ"


def _floats(module: Any) -> dict[str, float]:
    """Return the numbers of a module by name, among which is its eps."""
    return {name: value for name, value in vars(module).items() if type(value) is float}


def _recognise(module: Any, head_dim: Any) -> HeadNorm | str:
    """Return the arithmetic of a norm module, found by calls of it, or a reason."""
    tensors = {name: x for name, x in (module._parameters | module._buffers).items() if x is not None}
    if len(tensors) > 1 or any(module.children()):
        return f"is no RMSNorm: it has {', '.join([*tensors, *module._modules])}"
    name, weight = next(iter(tensors.items()), (None, None))
    width = head_dim or 32 if weight is None else weight.shape[-1]
    if weight is not None and weight.ndim != 1:
        return f"has the weights {tuple(weight.shape)}: they differ between heads"
    if width < 2 or head_dim not in (None, width):
        return f"norms {width} features at once, and a head has {head_dim}"
    forms = [*product(OFFSETS, ROUNDINGS)][: 1 if weight is None else None]  # all equal without weights
    norms = [HeadNorm(type(module), name, eps, *form) for eps in _floats(module) for form in forms]
    matches = [norm for norm in norms if _matches(norm, module, width)]
    return matches[0] if len(matches) == 1 else "has another arithmetic or rounding than RMSNorm of a head"


def _matches(norm: HeadNorm, module: Any, width: int) -> bool:
    """Return whether our norm gives the results of a module, in each dtype, for small and large heads."""
    probe, random = probe_of(module), torch.Generator().manual_seed(width)
    eps = vars(module)[norm.eps]
    for dtype, scale in product(PRECISION, (1.0, 20.0, math.sqrt(abs(eps)))):
        if norm.weight is not None:
            weight = torch.randn(width, generator=random, dtype=torch.float32) / 4 + 1 - norm.offset
            probe._parameters[norm.weight] = weight.to(dtype)
        x = (torch.randn(2, 3, 4, width, generator=random, dtype=torch.float32) * scale).to(dtype)
        try:
            with torch.no_grad():
                theirs = type(module).forward(probe, x.clone())
        except Exception:  # whatever a module raises for these arrays
            return False
        if not isinstance(theirs, torch.Tensor) or theirs.dtype is not dtype or theirs.shape != x.shape:
            return False
        ours = _normed(norm, probe, x, eps)
        if not torch.allclose(theirs, ours, rtol=PRECISION[dtype], atol=1e-30):
            return False
        # Sums of another order decide a few roundings; another rounding differs in a third of the numbers.
        if dtype is not torch.float32 and (theirs != ours).float().mean() > 0.004:
            return False
    return True


def _normed(norm: HeadNorm, probe: Any, x: Any, eps: float) -> Any:
    """Return x normed by us: one pass with a rotation by 0."""
    shape = (x.shape[-2], x.shape[-1] // 2)
    angles = torch.zeros(shape, dtype=torch.float32)
    layout = Layout(x.shape[-1], 0, 2 * shape[1], "half", "half", None)
    tables = Tables(angles.cos(), angles, layout)
    fields = (probe._parameters.get(norm.weight), None), eps, norm.offset, norm.rounding
    (y,), _ = _dispatch.attention_inputs((x,), tables, (-2,), fields, None)
    return y
