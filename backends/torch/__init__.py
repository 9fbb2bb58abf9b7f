"""PyTorch: the core, seen by Dynamo without what it cannot trace."""

from typing import Any

import array_api_compat.torch as xp
import torch

from rope_array import _core
from rope_array._angles import Kit
from rope_array._namespace import Library
from rope_array._plan import Constants, Layout, Plan

name = "torch"


class Torch(Library):
    def owns(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def wide(self) -> bool:
        return True

    def device(self, x: Any) -> Any:
        return x.device

    def kit(self, x: Any) -> Kit:
        return Kit(self.xp, True, {"device": x.device}, self.constants)

    def constants(self, numbers: Constants, dtype: Any, create: dict[str, Any]) -> Any:
        return torch.tensor(numbers.values, dtype=dtype, **create)


LIBRARY = Torch("torch", xp)


def apply(xs: Any, pos: Any, plan: Plan, seq_axis: int, run: Any) -> Any:
    return _core.apply(xs, pos, plan, seq_axis, LIBRARY)


def tables(pos: Any, like: Any, plan: Plan, inv_freq: Any, run: Any) -> Any:
    return _core.tables(pos, like, plan, inv_freq, LIBRARY)


def rotate(xs: Any, cos: Any, sin: Any, layout: Layout, seq_axis: int, run: Any) -> Any:
    return _core.rotate(xs, cos, sin, layout, seq_axis, LIBRARY)
