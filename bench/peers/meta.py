"""The complex form of Meta's Llama (llama/model.py), written out: interleaved pairs as complex numbers."""

from rope_array.testing import Target

from ._note import FAR, Note, first, release
from ._timed import Timed

NOTES = {
    "Llama, complex form": Note(
        "the formula of [llama/model.py](https://github.com/meta-llama/llama/blob/main/llama/model.py) "
        "written out: `view_as_complex(x)` times the rows of the positions in `torch.polar(1, outer(t, "
        "freqs))`",
        FAR,
    )
}


def targets() -> list[Target]:
    def rotate(x, pos, base=10000.0):
        return _apply(x, _turns(first(pos), x.shape[1], x.shape[-1], base))

    return [
        Target(
            rotate,
            name="Llama, complex form",
            version=release("torch"),
            library="torch",
            layout="bshd",
            positions="offset",
            angles="float32",
            lacks={"float64": "computes in float32"},
        )
    ]


def _turns(start, length, width, base):
    """Compute the used rows of the model's table only."""
    import torch

    freqs = 1.0 / (base ** (torch.arange(0, width, 2).float() / width))
    angles = torch.outer(torch.arange(start, start + length), freqs).float()
    return torch.polar(torch.ones_like(angles), angles).view(1, length, 1, width // 2)


def _apply(x, table):
    import torch

    b, s, h, d = x.shape
    numbers = torch.view_as_complex(x.float().reshape(b, s, h, d // 2, 2))
    return torch.view_as_real(numbers * table).flatten(3).type_as(x)


def timed(arrays):
    """The table is made before, as in the model."""
    return {"Llama, complex form": lambda: _timed(arrays)}


def _timed(arrays):
    arrays.only("interleaved")
    x = arrays.torch("bshd")
    table = _turns(arrays.one_start(), x.shape[1], x.shape[-1], 10000.0)
    return Timed(lambda: _apply(x, table), "bshd")
