"""Position encodings, one module for each, with one interface: see `Encoding`."""

from ._base import Encoding
from .rotary import Rotary

ENCODINGS = {"none": Encoding, "rope": Rotary}
