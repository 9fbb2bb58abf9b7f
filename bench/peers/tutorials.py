"""Three forms of the paper's formulas in tutorials and blogs, rewritten here."""

from rope_array.testing import Target

from ._note import FAR, WITH_16_BITS, Note, release

_CAST = (
    "`model.to(dtype)` casts the frequencies, and positions are made in the dtype of the frequencies "
    "([gpt-neox #1003](https://github.com/EleutherAI/gpt-neox/issues/1003))"
)
NOTES = {
    "tutorial: rotate_half": Note(
        "a module with a buffer inv_freq, `cat(freqs, freqs)` and `x * cos + rotate_half(x) * sin` on (S, "
        "B, H, D), as in [EleutherAI's blog](https://blog.eleuther.ai/rotary-embeddings/). The module is "
        "cast to x's dtype, as a model casts it",
        {**dict.fromkeys(WITH_16_BITS, _CAST), **FAR},
    ),
    "tutorial: table": Note(
        "a module that keeps cos and sin of the longest x so far, on (S, B, H, D), and copies the features "
        "that do not rotate, as in [labml's annotated "
        "papers](https://nn.labml.ai/transformers/rope/index.html); float32, as there",
        {
            **FAR,
            "training_after_inference": "the first call makes the table; if it is made under "
            "`torch.inference_mode()`, PyTorch cannot save it for the gradient of a later call",
        },
    ),
    "tutorial: matrix": Note(
        "a rotation matrix for each position and `x @ R[:S]`, as in [Llama from "
        "scratch](https://github.com/bkitano/llama-from-scratch); one head at a time, in float32, as there",
        {
            "*": "the paper's exponent -2(i - 1)/d counts i from 1, the loop from 0, so the first frequency "
            "is base^(2/d) instead of 1; and `x @ R` rotates in the opposite direction"
        },
    ),
}


def targets() -> list[Target]:
    return [_rotate_half(), _table(), _matrix()]


def _rotated_half(x):
    import torch

    a, b = x.chunk(2, dim=-1)
    return torch.cat([-b, a], dim=-1)


def _rotate_half() -> Target:
    import torch

    class Rotary(torch.nn.Module):
        def __init__(self, width, base):
            super().__init__()
            self.register_buffer("inv_freq", base ** -(torch.arange(0, width, 2).float() / width))

        def forward(self, length):
            places = torch.arange(length).type_as(self.inv_freq)
            freqs = torch.outer(places, self.inv_freq)
            angles = torch.cat([freqs, freqs], dim=-1)[:, None, None, :]
            return angles.cos(), angles.sin()

    def rotate(x, pos, base=10000.0):
        cos, sin = Rotary(x.shape[-1], base).to(x.dtype)(x.shape[0])
        return x * cos + _rotated_half(x) * sin

    return Target(
        rotate,
        name="tutorial: rotate_half",
        version=release("torch"),
        library="torch",
        fixed={"pairing": "half"},
        layout="sbhd",
        positions="arange",
        angles="float32",
        arithmetic="own",
    )


def _table() -> Target:
    import torch

    class Rotary(torch.nn.Module):
        def __init__(self, width, base):
            super().__init__()
            self.width, self.base = width, base
            self.cos = self.sin = None

        def build(self, length, device):
            if self.cos is not None and length <= len(self.cos):
                return
            omegas = 1.0 / self.base ** (torch.arange(0, self.width, 2, device=device).float() / self.width)
            angles = torch.arange(length, device=device).float()[:, None] * omegas
            angles = torch.cat([angles, angles], dim=1)[:, None, None, :]
            self.cos, self.sin = angles.cos(), angles.sin()

        def forward(self, x):
            self.build(len(x), x.device)
            first, last = x[..., : self.width], x[..., self.width :]
            rotated = first * self.cos[: len(x)] + _rotated_half(first) * self.sin[: len(x)]
            return torch.cat([rotated, last], dim=-1)

    modules = {}

    def rotate(x, pos, base=10000.0, rotary_dim=None):
        key = (x.shape[-1] if rotary_dim is None else rotary_dim, base)
        return modules.setdefault(key, Rotary(*key))(x)

    return Target(
        rotate,
        name="tutorial: table",
        version=release("torch"),
        library="torch",
        fixed={"pairing": "half"},
        layout="sbhd",
        positions="arange",
        dtypes=("float32",),
        angles="float32",
    )


def _matrix() -> Target:
    import torch

    def matrices(length, width, base):
        # PyTorch replaces the tutorial's loops over positions, in float64 as Python's numbers.
        places = torch.arange(length, dtype=torch.float64)
        r = torch.zeros(length, width, width)
        for i in range(width // 2):
            angle = places * base ** (-2.0 * (i - 1) / width)
            a, b = 2 * i, 2 * i + 1
            r[:, a, a] = r[:, b, b] = torch.cos(angle).float()
            r[:, b, a], r[:, a, b] = torch.sin(angle).float(), -torch.sin(angle).float()
        return r

    def rotate(x, pos):
        r = matrices(x.shape[1], x.shape[2], 10000.0)
        return torch.bmm(x.transpose(0, 1), r).transpose(0, 1)

    return Target(
        rotate,
        name="tutorial: matrix",
        version=release("torch"),
        library="torch",
        layout="bsd",
        positions="arange",
        furthest=4095,  # a matrix of d * d numbers for each position
        dtypes=("float32",),
    )
