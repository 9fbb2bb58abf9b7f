"""Tables by few operations, for eager calls: cos and sin are computed side by side, from cached constants."""

from typing import Any

import torch

from rope_array._array_api.angles import COS_32, COS_64, SIN_32, SIN_64
from rope_array._spec.plan import Constants

from ._library import TorchOps

_POLYNOMIALS = {  # the coefficients of cos and of sin in pairs, the highest power first
    torch.float32: Constants([*zip(COS_32, SIN_32, strict=True)][::-1]),
    torch.float64: Constants([*zip(COS_64, SIN_64, strict=True)][::-1]),
}
# By columns, for cos, sin, -cos and -sin: the last step multiplies by (c0 + c1·u)·u, and adds c2.
_LAST_STEPS = Constants([(0.0, 1.0, 0.0, -1.0), (1.0, 0.0, -1.0, 0.0), (1.0, 0.0, -1.0, -0.0)])
_ROWS = Constants([0, 1])  # of these four, cos and sin


class StackedOps(TorchOps):
    """PyTorch's operations for calls that nothing intercepts."""

    def constants(self, numbers: Constants, dtype: Any) -> Any:
        # Safe to cache: nothing wraps a tensor here. A copy to a device would wait for all work on it.
        device = self.creation_kwargs["device"]
        current_stream = getattr(getattr(torch, device.type, None), "current_stream", None)
        # Each stream has a copy: memory that is freed belongs to the stream on which it was allocated.
        key = dtype, device, current_stream and current_stream(device)
        if key not in numbers.arrays:
            with torch.inference_mode(False):
                numbers.arrays[key] = super().constants(numbers, dtype)
        return numbers.arrays[key]

    def cos_sin(self, quadrant: Any, u: Any) -> Any:
        ones = (1,) * u.ndim
        first, *others = self.constants(_POLYNOMIALS[u.dtype], u.dtype).view(-1, 2, *ones)
        c0, c1, c2 = self.constants(_LAST_STEPS, u.dtype).view(3, 2, 2, *ones)
        factors = torch.addcmul(c0, c1, u) * u  # the sum is exact, so it may be fused
        z, sums = factors[0, 0], first
        for coefficients in others:
            sums = sums * z + coefficients
        rows = (sums * factors + c2).flatten(0, 1)
        wanted = self.constants(_ROWS, quadrant.dtype).view(2, *ones) - quadrant & 3
        return rows.gather(0, wanted).unbind()
