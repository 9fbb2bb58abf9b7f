"""The replacements of Gemma's and MaxText's rotary functions in docs/in-my-model/jax.md.

Neither package is installed here, as Gemma's requirements include TensorFlow, and MaxText's are larger still.
Stand-ins have the names, signatures and conventions of

* google-deepmind/gemma 7691fd4e, gemma/gm/math/_positional_embeddings.py; gemma 3.3.0 has the same file;
* AI-Hypercomputer/maxtext e591f30c, src/maxtext/layers/embeddings.py and attentions.py.

The replacements were run on these files too, and the other rows of the page's table compared with them: up to
position 32, float32 results differ by at most 7e-6, which is the error of theirs.
"""

import re
import sys
import types

import docs_blocks
import numpy as np
import pytest
from compare import judge, normal, values

jax = pytest.importorskip("jax")
jnp = jax.numpy
pytestmark = pytest.mark.library("jax")

PAGE = (docs_blocks.DOCS / "in-my-model" / "jax.md").read_text("utf-8")
D, SHAPE = 32, (2, 8, 3, 32)
POS = jnp.arange(16, dtype="int32").reshape(2, 8) * 3
X = normal("jax", *SHAPE)


def run_block(name):
    """Run the block of the page that begins with a file name."""
    (code,) = re.findall(rf"^```python\n# {name}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    exec(compile(code, name, "exec"), {"__name__": name})


def module(monkeypatch, name, **names):
    """Import a module with these names from now on, and its parents."""
    new = types.ModuleType(name)
    vars(new).update(names)
    monkeypatch.setitem(sys.modules, name, new)
    parent, _, last = name.rpartition(".")
    if parent:
        if parent not in sys.modules:
            module(monkeypatch, parent)
        setattr(sys.modules[parent], last, new)
    return new


def textbook(x, positions, frequencies, pairing="half"):
    """Rotate (batch, positions, heads, features) by angles in float32."""
    angles = positions[..., None].astype("float32") * frequencies
    cos, sin = (f(angles)[:, :, None] for f in (jnp.cos, jnp.sin))
    if pairing == "half":
        a, b = jnp.split(x, 2, axis=-1)
        return jnp.concat([a * cos - b * sin, b * cos + a * sin], axis=-1)
    a, b = x[..., ::2], x[..., 1::2]
    return jnp.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(x.shape)


def powers(base, width=D):
    return np.float32(base) ** np.float32(-np.arange(0, width, 2) / width)


def assert_replaced(ours, theirs, **fields):
    """Equal at near positions, up to float32 angles; by the definition at far ones, where theirs is not."""
    near = values(ours(X, POS)), values(theirs(X, POS))
    assert near[0].shape == X.shape
    assert np.allclose(*near, rtol=0, atol=2e-5)
    far = POS + 1_000_000
    y = jax.jit(ours)(X, far)
    judge(y, X, far, seq_axis=-3, **fields)
    assert np.abs(values(y) - values(theirs(X, far))).max() > 1e-3


# ---- Gemma ----


def gemma_rope(inputs, positions, *, base_frequency, scale_factor=1.0, rope_proportion=1.0):
    """Rotate (batch, positions, heads, features); `rope_proportion` of the pairs, others have frequency 0."""
    rotated = int(rope_proportion * inputs.shape[-1] // 2)
    frequencies = powers(base_frequency, inputs.shape[-1]) / np.float32(scale_factor)
    frequencies[rotated:] = 0
    return textbook(inputs, positions, frequencies).astype(inputs.dtype)


GEMMA = {
    "local layers": {"base_frequency": 10_000},
    "global layers of Gemma 3": {"base_frequency": 1_000_000, "scale_factor": 8.0},
    "global layers of Gemma 4": {"base_frequency": 1_000_000, "rope_proportion": 0.25},
}


@pytest.mark.parametrize("name", GEMMA)
def test_gemma(name, monkeypatch):
    fields = GEMMA[name]
    embeddings = module(monkeypatch, "gemma.gm.math._positional_embeddings", apply_rope=gemma_rope)
    math = sys.modules["gemma.gm.math"]
    math.apply_rope = gemma_rope
    run_block("exact_gemma.py")
    assert math.apply_rope is embeddings.apply_rope is not gemma_rope
    rule = {
        "rope_type": "proportional",
        "partial_rotary_factor": fields.get("rope_proportion", 1.0),
        "factor": fields.get("scale_factor", 1.0),
    }
    rope = {"base": fields["base_frequency"], "pairing": "half", "scaling": rule}

    def ours(x, pos):  # as Gemma 4's vision tower passes them
        return embeddings.apply_rope(inputs=x, positions=pos, **fields)

    assert_replaced(ours, lambda x, pos: gemma_rope(x, pos, **fields), **rope)
    assert ours(X.astype("bfloat16"), POS).dtype == "bfloat16"


# ---- MaxText ----


class RotaryEmbedding:
    """Half pairs; `position` is required."""

    def __init__(self, min_timescale, max_timescale, mesh, embedding_dims=0, cast_as_fprop_dtype=True,
                 fprop_dtype="bfloat16", rope_linear_scaling_factor=1.0):  # fmt: skip
        self.min_timescale, self.max_timescale = min_timescale, max_timescale
        self.embedding_dims, self.rope_linear_scaling_factor = embedding_dims, rope_linear_scaling_factor
        self.cast_as_fprop_dtype, self.fprop_dtype = cast_as_fprop_dtype, fprop_dtype

    def __call__(self, inputs, position=None):
        frequencies = powers(self.max_timescale / self.min_timescale, self.embedding_dims)
        frequencies = frequencies / np.float32(self.min_timescale * self.rope_linear_scaling_factor)
        return self.cast(textbook(inputs, position, frequencies))

    def cast(self, y):
        return y.astype(self.fprop_dtype) if self.cast_as_fprop_dtype else y


class LLaMARotaryEmbedding(RotaryEmbedding):
    """Interleaved pairs, with the rule of Llama 3.1 if `use_scale`; positions from 0 if none are given."""

    def __init__(self, *args, use_scale=True, **fields):
        super().__init__(*args, **fields)
        self.use_scale = use_scale

    def __call__(self, inputs, position=None):
        if position is None:
            position = jnp.arange(inputs.shape[1])[None]
        frequencies = powers(self.max_timescale, self.embedding_dims)
        if self.use_scale:
            turns = 8192 * frequencies / (2 * np.pi)  # in the trained context
            smooth = np.clip((turns - 1) / (4 - 1), 0, 1)
            frequencies = ((1 - smooth) * frequencies / 8 + smooth * frequencies).astype("float32")
        return self.cast(textbook(inputs, position, frequencies, "interleaved"))


CLASSES = {each.__name__: each for each in (RotaryEmbedding, LLaMARotaryEmbedding)}


@pytest.fixture
def attentions(monkeypatch):
    """MaxText's module of attentions, after the replacement."""
    module(monkeypatch, "maxtext.layers.embeddings", **CLASSES)
    attentions = module(monkeypatch, "maxtext.layers.attentions", **CLASSES)
    run_block("exact_maxtext.py")
    return attentions


LLAMA = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA |= {"original_max_position_embeddings": 8192}


def linear(factor):
    return {"pairing": "half", "scaling": {"rope_type": "linear", "factor": factor}}


MAXTEXT = {
    "default": ("RotaryEmbedding", 1, {}, {"pairing": "half"}),
    "linear": ("RotaryEmbedding", 1, {"rope_linear_scaling_factor": 8.0}, linear(8.0)),
    "min_timescale": ("RotaryEmbedding", 2, {}, linear(2.0)),
    "Llama 3.1": ("LLaMARotaryEmbedding", 1, {}, {"scaling": LLAMA}),
    "Llama 3": ("LLaMARotaryEmbedding", 1, {"use_scale": False}, {}),
}


@pytest.mark.parametrize("name", MAXTEXT)
def test_maxtext(attentions, name):
    kind, smallest, options, fields = MAXTEXT[name]
    old, new = CLASSES[kind], getattr(attentions, kind)
    assert issubclass(new, old)
    assert new is not old

    def make(kind, dtype):
        return kind(smallest, 500_000, None, embedding_dims=D, fprop_dtype=dtype, **options)

    assert_replaced(make(new, "float32"), make(old, "float32"), base=500_000 / smallest, **fields)
    assert make(new, "bfloat16")(X, POS).dtype == "bfloat16"


def test_maxtext_llama_counts_positions_itself(attentions):
    new = attentions.LLaMARotaryEmbedding(1, 500_000, None, embedding_dims=D, cast_as_fprop_dtype=False)
    judge(new(X), X, np.arange(8), base=500_000.0, scaling=LLAMA, seq_axis=-3)
