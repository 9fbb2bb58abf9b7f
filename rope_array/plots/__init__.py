"""Plots of rotary position embeddings: angle errors, frequencies, scaling rules, decay, rotations, scores.

Every function takes ropes, draws on matplotlib Axes and returns them; without `ax` it makes a new figure,
``ax.figure``, that pyplot does not know. `save` writes it to a file. The numbers come from the library's own
tables and from the definition in `rope_array.testing`. It needs ``python -m pip install matplotlib``.
"""

from ._angle_error import angle_error
from ._axes import axes
from ._drawing import save
from ._frequencies import scaling, wavelengths
from ._rotation import rotation
from ._scores import decay, scores

__all__ = ["angle_error", "axes", "decay", "rotation", "save", "scaling", "scores", "wavelengths"]


def __dir__() -> list[str]:
    return __all__
