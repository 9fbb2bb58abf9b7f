"""The replacements of Gemma's and MaxText's rotary functions in docs/in-my-model/jax.md.

Neither package is installed here, as Gemma's requirements include TensorFlow, and MaxText's are larger still.
Stand-ins have the names and attributes of

* google-deepmind/gemma 7691fd4e, gemma/gm/math/_positional_embeddings.py; gemma 3.3.0 has the same file;
* AI-Hypercomputer/maxtext e591f30c, src/maxtext/layers/embeddings.py and attentions.py.

The replacements were run on these files too, and the other rows of the page's table compared with them: up to
position 32, float32 results differ by at most 7e-6, which is the error of theirs.
"""

import re
import sys
from types import SimpleNamespace

import docs_blocks
import pytest
from compare import judge, normal

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.library("jax")

PAGE = (docs_blocks.DOCS / "in-my-model" / "jax.md").read_text("utf-8")
# Of (batch, positions, heads, features).
X = normal("jax", 2, 8, 3, 32)
POS = jax.numpy.arange(16, dtype="int32").reshape(2, 8) * 100_003


def run_block(name):
    """Run the block of the page that begins with a file name."""
    (code,) = re.findall(rf"^```python\n# {name}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    exec(compile(code, name, "exec"), {"__name__": name})


GEMMA = {
    "local layers": {"base_frequency": 10_000},
    "global layers of Gemma 3": {"base_frequency": 1_000_000, "scale_factor": 8.0},
    "global layers of Gemma 4": {"base_frequency": 1_000_000, "rope_proportion": 0.25},
}


@pytest.mark.parametrize("name", GEMMA)
def test_gemma(name, monkeypatch):
    embeddings, options = SimpleNamespace(), GEMMA[name]
    math = SimpleNamespace(_positional_embeddings=embeddings)
    monkeypatch.setitem(sys.modules, "gemma.gm.math", math)
    monkeypatch.setitem(sys.modules, "gemma.gm", SimpleNamespace(math=math))
    run_block("exact_gemma.py")
    assert math.apply_rope is embeddings.apply_rope
    rule = {
        "rope_type": "proportional",
        "partial_rotary_factor": options.get("rope_proportion", 1.0),
        "factor": options.get("scale_factor", 1.0),
    }
    fields = {"base": options["base_frequency"], "pairing": "half", "scaling": rule}
    for x in (X, X.astype("bfloat16")):
        y = embeddings.apply_rope(inputs=x, positions=POS, **options)  # as Gemma 4's vision tower passes them
        judge(y, x, POS, seq_axis=-3, **fields)


class RotaryEmbedding:
    """The attributes of MaxText's class that the replacement reads."""

    def __init__(self, **attributes):
        self.min_timescale, self.max_timescale, self.embedding_dims = 1, 500_000, 32
        self.cast_as_fprop_dtype, self.fprop_dtype = True, "bfloat16"
        self.rope_linear_scaling_factor = 1.0
        vars(self).update(attributes)


class LLaMARotaryEmbedding(RotaryEmbedding):
    use_scale = True


LLAMA = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA |= {"original_max_position_embeddings": 8192}
LINEAR = {"rope_type": "linear", "factor": 8.0}
# The class, attributes other than the usual ones, and fields of the rope.
MAXTEXT = {
    "default": (RotaryEmbedding, {}, {"pairing": "half"}),
    "linear": (RotaryEmbedding, {"rope_linear_scaling_factor": 8.0}, {"pairing": "half", "scaling": LINEAR}),
    "min_timescale": (
        RotaryEmbedding,
        {"min_timescale": 8, "max_timescale": 4_000_000},
        {"pairing": "half", "scaling": LINEAR},
    ),
    "Llama 3.1": (LLaMARotaryEmbedding, {}, {"scaling": LLAMA}),
    "Llama 3": (LLaMARotaryEmbedding, {"use_scale": False}, {}),
}


@pytest.mark.parametrize("name", MAXTEXT)
def test_maxtext(name, monkeypatch):
    old, attributes, fields = MAXTEXT[name]
    names = {cls.__name__: cls for cls in (RotaryEmbedding, LLaMARotaryEmbedding)}
    layers = SimpleNamespace(attentions=SimpleNamespace(**names), embeddings=SimpleNamespace(**names))
    monkeypatch.setitem(sys.modules, "maxtext.layers", layers)
    run_block("exact_maxtext.py")
    new = getattr(layers.attentions, old.__name__)
    assert issubclass(new, old)
    rotate = new(cast_as_fprop_dtype=False, **attributes)
    judge(rotate(X, POS), X, POS, base=500_000.0, seq_axis=-3, **fields)
    assert new(**attributes)(X, POS).dtype == "bfloat16"
    if old is LLaMARotaryEmbedding:  # without positions it counts from 0
        judge(rotate(X), X, range(8), base=500_000.0, seq_axis=-3, **fields)
