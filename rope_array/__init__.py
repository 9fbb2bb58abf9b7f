from ._apply import RoPE, apply
from ._rotation import Rotation
