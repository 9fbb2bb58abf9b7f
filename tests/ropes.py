"""The ropes of the tests, by name: fields for heads of 16 features, and ropes of many widths for loops."""

import rope_array as ra
from rope_array import Axes, RoPE
from rope_array.testing._library_target import as_records

BLOCKS = {"coordinates": (0, 0, 0, 0, 1, 1, 1, 1), "widths": (8, 8), "blocks": 2}
# In numbers, as the definition takes them; `rope` has the record of each rule and map.
FIELDS = {
    "plain": {},
    "half": {"pairing": "half", "base": 500_000.0},
    "partial": {"pairing": "half", "rotary_dim": 8, "rotary_start": 4, "attention_factor": 1.25},
    "mixed": {"pairing": "interleaved", "out_pairing": "half", "rotary_dim": 12, "attention_factor": 0.5},
    "half to interleaved": {"pairing": "half", "out_pairing": "interleaved"},
    "interleaved to half": {"pairing": "interleaved", "out_pairing": "half"},
    "slice": {"pairing": "half", "rotary_dim": 8, "rotary_start": 4},
    "interleaved slice": {"rotary_dim": 6, "rotary_start": 3},
    "slice to interleaved": {
        "pairing": "half", "out_pairing": "interleaved", "rotary_dim": 12, "rotary_start": 3
    },
    "first features": {"rotary_dim": 8},
    "features inside": {"rotary_dim": 8, "rotary_start": 4, "attention_factor": 1.25},
    "last features": {"pairing": "interleaved", "rotary_start": 6},
    "no features": {"rotary_dim": 0},
    "amplitude": {"pairing": "half", "attention_factor": 1.37},
    "amplitude to half": {"out_pairing": "half", "rotary_dim": 8, "attention_factor": 1.3},
    "frequencies": {"pairing": "half", "inv_freq": (3.0, 1.0, 0.7, 0.03, 1e-4, 0.0, -0.5, 1e-9)},
    "rule": {"scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
    "float32 angles": {"angles": "float32"},
    "two axes": {"axes": {"coordinates": (0, 0, 0, 0, 1, 1, 1, 1)}},
    "three axes": {"axes": {"coordinates": (0, 1, 2, 0, 1, 2, 0, 0)}},
    "blocks": {"pairing": "half", "axes": BLOCKS},
    "interleaved blocks": {"axes": BLOCKS},
}  # fmt: skip
BASIC = "plain", "half", "partial", "mixed"  # each pairing, a slice, an amplitude and another base
WITHOUT_AXES = [name for name, fields in FIELDS.items() if "axes" not in fields]


def fields_of(*names):
    """Return the fields of some ropes."""
    return {name: FIELDS[name] for name in names}


def rope(name, width=16, **changes):
    """Make a rope by its name."""
    return RoPE(width, **as_records(FIELDS[name]), **changes)


def ropes_of(*names):
    return {name: rope(name) for name in names}


# ---- of many widths, whose numbers of pairs are no powers of two ----

SPECS = {
    "interleaved": RoPE(72),
    "half": RoPE(72, pairing="half", base=500_000.0),
    "half to interleaved": RoPE(68, pairing="half", out_pairing="interleaved"),
    "interleaved to half": RoPE(68, pairing="interleaved", out_pairing="half"),
    "slice": RoPE(61, rotary_dim=34, pairing="half"),
    "offset slice": RoPE(61, rotary_dim=34, rotary_start=5),
    "offset slice to half": RoPE(61, rotary_dim=34, rotary_start=5, out_pairing="half"),
    "end": RoPE(20, rotary_start=6, pairing="half", out_pairing="interleaved"),
    "amplitude": RoPE(40, attention_factor=1.3),
    "frequencies": RoPE(8, inv_freq=(3.0, -0.5, 0.0, 1e-9), pairing="half"),
    "rule": RoPE(64, pairing="half", scaling=ra.Llama3(factor=8.0)),
    "no pairs of an odd head": RoPE(7, rotary_dim=0),
    "no pairs of one feature": RoPE(1, rotary_dim=0),
    "one pair": RoPE(2),
}
SEVERAL = {
    "chunked axes": RoPE(72, pairing="half", axes=Axes.chunked(12, 12, 12)),
    "interleaved axes": RoPE(80, rotary_dim=72, axes=Axes.interleaved(12, 12, 12), attention_factor=0.7),
    "axial": RoPE(72, out_pairing="half", axes=Axes.axial(16, 28, 28)),
    "blocks": RoPE(
        110, rotary_dim=108, rotary_start=1, pairing="half", axes=Axes.axial(36, 36, 36, blocks=True)
    ),
    "blocks to pairs": RoPE(
        54, pairing="half", out_pairing="interleaved", axes=Axes.axial(18, 18, 18, blocks=True)
    ),
    "unrotated pairs": RoPE(20, rotary_dim=16, axes=Axes((0, None, 2, 1, None, 0, None, None), count=3)),
}
