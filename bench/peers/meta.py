"""The complex form of Meta's Llama (llama/model.py), written out: interleaved pairs as complex numbers."""

from rope_array.testing import Target

from ._note import FAR, Note, first, release

NOTES = {
    "Llama, complex form": Note(
        "the formula of [llama/model.py](https://github.com/meta-llama/llama/blob/main/llama/model.py) "
        "written out: `torch.polar(1, outer(t, freqs))`, rows start to start + S of it times "
        "`view_as_complex(x)`",
        FAR,
    ),
}


def targets() -> list[Target]:
    import torch

    def turns(start, length, width, base):
        # The rows of its table that are used, instead of all rows before them.
        freqs = 1.0 / (base ** (torch.arange(0, width, 2).float() / width))
        angles = torch.outer(torch.arange(start, start + length), freqs).float()
        return torch.polar(torch.ones_like(angles), angles)

    def rotate(x, pos, base=10000.0):
        b, s, h, d = x.shape
        table = turns(first(pos), s, d, base).view(1, s, 1, d // 2)
        numbers = torch.view_as_complex(x.float().reshape(b, s, h, d // 2, 2))
        return torch.view_as_real(numbers * table).flatten(3).type_as(x)

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
