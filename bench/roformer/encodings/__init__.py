"""Position encodings, one module for each family, with one interface: see `Encoding`."""

from ._base import Encoding
from .alibi import ALiBi
from .deberta import DeBERTa
from .learned import Learned
from .linear import LinearAttention, LinearRotary
from .performer import Performer, PerformerRotary
from .rotary import Rotary
from .rotary_scaled import RotaryLinear, RotaryNTK, RotaryYaRN
from .shaw import Shaw
from .sinusoidal import Sinusoidal
from .t5 import T5
from .transformer_xl import TransformerXL
from .tupe import TUPEAbsolute, TUPERelative
from .xpos import XPos

ENCODINGS = {
    "none": Encoding,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "shaw": Shaw,
    "transformer-xl": TransformerXL,
    "t5": T5,
    "tupe-absolute": TUPEAbsolute,
    "tupe-relative": TUPERelative,
    "deberta": DeBERTa,
    "alibi": ALiBi,
    "rope": Rotary,
    "rope-linear": RotaryLinear,
    "rope-ntk": RotaryNTK,
    "rope-yarn": RotaryYaRN,
    "xpos": XPos,
    "linear": LinearAttention,
    "linear-rope": LinearRotary,
    "performer": Performer,
    "performer-rope": PerformerRotary,
}
