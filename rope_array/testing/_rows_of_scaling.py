"""Rows of scaling rules and of axes."""

from __future__ import annotations

from collections.abc import Iterator

from ._cover import Cover
from ._named_values import AXES
from ._row import CheckRow
from ._rules import RULES

_SMALL = {"rows": [(1, 2, 2)]}
YARN = "scaling=yarn:factor=4.0"
# Rules that have rows here. Rows of every other rule are made from its formula and parameters.
_WITH_ROWS = ["linear", "ntk", "dynamic", "yarn", "llama3", "longrope", "proportional", "periods"]
OTHERS = {name: formula for name, formula in RULES.items() if name not in _WITH_ROWS}


def _changed(name: str) -> Iterator[str]:
    """Yield calls of a rule, before and after each call with another value of one of its numbers."""
    yield f"scaling={name}"
    for parameter, value in RULES[name].parameters.items():
        if isinstance(value, (int, float)):
            yield f"scaling={name}:{parameter}={1.5 * value}|{name}"


# Rules of every kind, with each of their parameters.
RULES_AND_PARAMETERS = (
    "linear:factor=4.0", "llama3:original_max_position_embeddings=8192", "yarn:factor=4.0:truncate=False",
    "yarn:factor=4.0", "yarn:factor=40.0:original_max_position_embeddings=4096:truncate=False",
    "yarn:factor=4.0:beta_fast=8.0:beta_slow=2.0", "yarn:factor=4.0:mscale=1.0:mscale_all_dim=0.5",
    "yarn:factor=4.0:attention_factor=1.25", "ntk:factor=4.0", "dynamic:length=128", "dynamic:length=64",
    "llama3:high_freq_factor=32.0", "longrope", "longrope:length=1",
    "proportional:partial_rotary_factor=0.25", "periods", *OTHERS,
)  # fmt: skip
_LINEAR = "scaling=linear:factor="
_RAMP = "scaling=yarn:factor=4.0:beta_fast=8.0:beta_slow=1.0:truncate=False"

SCALING_ROWS = [
    CheckRow(
        "scaling_linear",
        "Linear scaling divides every frequency by the factor (Chen et al., arXiv 2306.15595).",
        [f"{_LINEAR}4.0", f"{_LINEAR}1.0", f"{_LINEAR}2.5", f"{_LINEAR}0.5", f"{_LINEAR}3"],
    ),
    CheckRow(
        "scaling_ntk",
        "NTK-aware scaling sets the base to θ·f^(d/(d-2)): keeps the first frequency, divides the last by f.",
        ["scaling=ntk:factor=4.0|ntk:factor=1.0|ntk:factor=1000.0", "scaling=ntk:factor=4.0 rotary_dim=8"],
    ),
    CheckRow(
        "scaling_dynamic",
        "Dynamic NTK sets the base to θ·(f·L/m - (f - 1))^(d/(d-2)) for a length L beyond m.",
        ["scaling=dynamic:length=128|dynamic:length=64|dynamic:length=1|dynamic:length=321"],
    ),
    CheckRow(
        "scaling_yarn",
        "YaRN ramps from kept to divided frequencies; the ramp's ends are rounded unless truncate is false.",
        [YARN, f"{YARN}:truncate=False", "scaling=yarn:factor=40.0:beta_fast=8.0:beta_slow=2.0",
         f"{YARN}:original_max_position_embeddings=4096",
         f"{YARN}:beta_fast=2.0:beta_slow=2.0:truncate=False", "scaling=yarn:factor=1.0",
         f"{YARN} rotary_dim=8"],
    ),
    CheckRow(
        "scaling_amplitude",
        "YaRN's amplitude is the call's attention_factor, else the rule's, else "
        "g(mscale)/g(mscale_all_dim), else g(1).",
        ["scaling=yarn:factor=40.0", "scaling=yarn:factor=40.0:attention_factor=1.25",
         "scaling=yarn:factor=40.0:mscale=1.0:mscale_all_dim=0.5",
         "scaling=yarn:factor=40.0:mscale=0.7:mscale_all_dim=0.7", "scaling=yarn:factor=40.0:mscale=0.7",
         "scaling=yarn:factor=1.0", f"{YARN} attention_factor=1.75"],
    ),
    CheckRow(
        "scaling_llama3",
        "Llama 3's rule keeps short wavelengths, divides long ones, and interpolates between them.",
        ["base=1000.0 scaling=llama3|llama3:original_max_position_embeddings=8192",
         "base=1000.0 scaling=llama3:original_max_position_embeddings=900:high_freq_factor=32.0",
         "scaling=llama3|llama3:high_freq_factor=32.0"], ("scaling[llama3]",),
    ),
    CheckRow(
        "scaling_longrope",
        "LongRoPE divides each frequency by its own factor: from the long list beyond the trained context.",
        ["scaling=longrope:length=64|longrope:length=65|longrope:length=1",
         "scaling=longrope:length=1:attention_factor=1.5"],
    ),
    CheckRow(
        "scaling_proportional",
        "The proportional rule rotates the first share of the pairs, with exponents over the full width.",
        [f"scaling=proportional:partial_rotary_factor={share}:factor={factor}"
         for share, factor in ((0.25, 1.0), (0.5, 8.0), (1.0, 1.0), (0.0, 1.0), (0.3, 2.0))],
    ),
    CheckRow("scaling_periods", "The periods rule multiplies every frequency by 2π.", ["scaling=periods"]),
    *(CheckRow(f"scaling_{name}", OTHERS[name].requirement, [*_changed(name)]) for name in OTHERS),
    CheckRow(
        "rules_that_differ_in_one_parameter",
        "Each call uses its own rule, or none: no cache leaves a parameter of the rule out of its key.",
        [f"{_LINEAR}2.0", "", f"{_LINEAR}4.0", "scaling=yarn:factor=2.0", f"{_LINEAR}2.0", "",
         "scaling=ntk:factor=2.0|ntk:factor=4.0|ntk:factor=2.0",
         *(f"scaling=dynamic{change}" for change in
           ("", ":length=300", ":factor=3.0", ":max_position_embeddings=50", "")),
         *(f"{_RAMP}{change}" for change in
           ("", ":beta_fast=4.0", ":beta_slow=2.0", ":factor=5.0", ":original_max_position_embeddings=200",
            ":truncate=True", ":attention_factor=1.5", ":mscale=1.0:mscale_all_dim=0.5",
            ":mscale=0.7:mscale_all_dim=0.5", ":mscale=1.0:mscale_all_dim=0.7", "")),
         *(f"scaling=llama3:high_freq_factor=32.0{change}" for change in
           ("", ":high_freq_factor=16.0", ":low_freq_factor=4.0", ":factor=4.0",
            ":original_max_position_embeddings=200", "")),
         *(f"scaling=longrope:length=1:short_factor=ones{change}" for change in
           ("", ":short_factor=last", ":factor=16.0", ":attention_factor=1.5", "")),
         *(f"scaling=longrope:length=100:long_factor=ones{change}" for change in
           ("", ":long_factor=last", ":original_max_position_embeddings=50", "")),
         *(f"scaling=proportional{change}" for change in ("", ":partial_rotary_factor=0.75", ":factor=4.0",
         "")), *(call for name in OTHERS for call in _changed(name))],
        ("scaling",), few=8,
    ),
    CheckRow(
        "rules_at_wide_heads",
        "Every scaling rule changes every pair of a wide head, whatever its parameters.",
        [Cover(
            {**_SMALL, "width": [128, 64], "scaling": RULES_AND_PARAMETERS, "pairing": [None, "other"]},
            [("pairing", "width", "scaling")], alone=True,
        )],
        ("scaling", "widths"), few=4,
    ),
]  # fmt: skip

AXES_ROWS = [
    CheckRow(
        "axes",
        "Each pair is rotated by its own coordinate: in runs, alternating, with a series for each "
        "coordinate, by indices, or not at all.",
        [f"axes={'|'.join(AXES)}", "axes=blocks pairing=half|interleaved", "axes=chunks|blocks inverse=True"],
        few=5,
    ),
    CheckRow(
        "axes_of_a_part", "The pairs of axes are in the rotated slice.",
        ["axes=alternating rotary_dim=8", "axes=blocks rotary_dim=8 rotary_start=4",
         "axes=gaps width=32 rotary_dim=16", "axes=blocks width=32 rotary_dim=16 rotary_start=4"],
    ),
    CheckRow(
        "axes_of_positions",
        "Coordinates of shape (B, S, n) match x as positions of shape (B, S) do; of shape (n,), all rows.",
        ["axes=chunks positions=BS rows=2,3,5|2,3,3", "axes=chunks positions=scalar",
         "axes=series kind=float",
         "axes=chunks in_tuple=True"],
    ),
    CheckRow(
        "axes_and_frequencies",
        "A scaling rule is applied to each series with its own width; inv_freq to pairs.",
        [f"axes=chunks|series {YARN}|ntk:factor=4.0", "axes=chunks|gaps inv_freq=True"],
    ),
    CheckRow(
        "axes_at_wide_heads",
        "Every pair of a wide head is rotated by its own coordinate, for axes of every kind.",
        [Cover(
            {**_SMALL, "reach": [5000], "width": [128, 64], "axes": tuple(AXES), "pairing": [None, "other"]},
            [("pairing", "width", "axes")], alone=True,
        )],
        ("axes", "any_positions", "widths"), few=1,
    ),
]  # fmt: skip
