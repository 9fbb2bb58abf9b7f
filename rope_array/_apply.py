"""The front door."""

from typing import Any

from . import _registry
from ._errors import ShapeError, SpecError, describe
from ._rotation import Rotation
from ._spec import Spec, plan_of


def apply(x: Any, pos: Any, rope: Any = None, *, seq_axis: int = -2, inverse: bool = False, backend: str | None = None, **spec: Any) -> Any:
    xs = x if type(x) is tuple else (x,)
    path = _registry.choose(xs[0], backend)
    plan = plan_of(xs[0].shape[-1], **spec) if rope is None else rope._plan
    plan = plan.inverse if inverse else plan
    ys = path.apply(xs, pos, plan, seq_axis, _registry.run)
    return ys if type(x) is tuple else ys[0]


class RoPE(Spec):
    def apply(self, x, pos, *, seq_axis=-2, inverse=False, backend=None):
        return apply(x, pos, self, seq_axis=seq_axis, inverse=inverse, backend=backend)

    def rotation(self, pos, *, like, inv_freq=None, backend=None):
        path = _registry.choose(like, backend)
        cos, sin = path.tables(pos, like, self._plan, inv_freq, _registry.run)
        return Rotation(cos, sin, {self._plan.layout: ()})
