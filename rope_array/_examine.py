"""Compare rotations with the ropes of a config: from two arrays, from files of a cache, or layer by layer."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ._diagnose._differences import find_differences
from ._diagnose._mistakes import ROUNDERS
from ._diagnose._observation import EPS, Floats, Observation, read_observation
from ._rope import RoPE

__all__ = ["Examination", "Finding"]

_REMEDIES = {
    "pairing": "change the code, or move q and k by convert.weights(w, rope, to=..., num_heads=...)",
    "base": "give the code rope_theta of the config",
    "scaling": "give the code rope_scaling (or rope_parameters) of the config",
    "frequencies": "compute inv_freq in float32, and keep it so when the model is cast",
    "factor": "multiply cos and sin by attention_factor of the rule, once",
    "positions": "give each row of the batch its own position_ids, counted without padding",
    "rotated part": "give the code partial_rotary_factor, or the head_dim of the rotated part, of the config",
    "coordinates": "give the code mrope_section of the config, and positions for each coordinate",
    "direction": "check the sign of sin",
    "rotated twice": "remove one of the two calls: cached keys are rotated already",
    "not rotated": "call the rotation; the layer may be listed in no_rope_layers by mistake",
    "16-bit tables": "compute positions, angles, cos and sin in float32",
    "table too short": "make the table as long as max_position_embeddings, or as the longest sequence",
    "weights of the other pairing": "convert once: convert.weights(w, rope, to=..., num_heads=...), with the "
    "pairing that w has in rope, and the pairing of the code in to",
    "unexplained": "compare more rows, in float32; see rope_array.diagnose",
}


@dataclass(frozen=True)
class Finding:
    """A difference between a rotation and the config.

    Attributes
    ----------
    kind : str
        The thing that differs: "pairing", "base", "scaling", "frequencies", "factor", "positions", "rotated
        part", "coordinates", "direction", "rotated twice", "not rotated", "16-bit tables", "table too short",
        "weights of the other pairing", "draft" or "unexplained".
    layers : tuple
        The layers that have it.
    text : str
        The value that was found, and the expected value.
    remedy : str
        What to do.
    """

    kind: str
    layers: tuple[Any, ...]
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        where = f"{_names(self.layers)}: " if any(layer is not None for layer in self.layers) else ""
        return f"{where}{self.kind}: {self.text}\n    remedy: {self.remedy}"


@dataclass(frozen=True)
class Examination:
    """The findings of an examination; printed, a report.

    Attributes
    ----------
    layers : tuple
        The layers that were compared.
    findings : tuple of Finding
        Differences from the config; equal findings of several layers are one.
    unseen : tuple of (str, str)
        Layers that could not be compared, and the reasons.
    """

    layers: tuple[Any, ...]
    findings: tuple[Finding, ...]
    unseen: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        merged: dict[tuple[str, str, str], tuple[Any, ...]] = {}
        for finding in self.findings:
            key = finding.kind, finding.text, finding.remedy
            merged[key] = tuple(dict.fromkeys((*merged.get(key, ()), *finding.layers)))
        findings = (Finding(kind, layers, *texts) for (kind, *texts), layers in merged.items())
        object.__setattr__(self, "findings", tuple(findings))

    @property
    def ok(self) -> bool:
        """Whether layers were compared, and each rotates as the config says."""
        return bool(self.layers) and not self.findings

    def __str__(self) -> str:
        count, findings = len(self.layers), len(self.findings) or "no"
        lines = [f"{count} layer{'s' * (count != 1)} compared: {findings} finding{'s' * (findings != 1)}"]
        lines += [f"  {line}" for finding in self.findings for line in str(finding).splitlines()]
        return "\n".join([*lines, *(f"  not seen: {name}: {reason}" for name, reason in self.unseen)])


def findings_of(
    before: Any,
    after: Any,
    pos: Any,
    rope: RoPE,
    *,
    layer: Any,
    seq_axis: int = -2,
    tolerance: float | None = None,
) -> list[Finding]:
    """Return the differences between a rotation of a layer and the rope that is expected of it."""
    observation = _of_values(read_observation(before, after, pos, seq_axis, tolerance))
    if rope.scaling is not None and not rope.scaling.resolved:
        rope = rope.at_length(int(observation.reach) + 1)
    return [
        Finding(kind, (layer,), text, _REMEDIES[kind]) for kind, text in find_differences(observation, rope)
    ]


def _of_values(observation: Observation) -> Observation:
    """Return an observation with the precision of its values: float32 arrays may hold bfloat16 numbers.

    Float32 angles are right at every position. A tolerance counts as a precision.
    """
    held = [EPS[name] for name in ROUNDERS if _holds(observation.y, name)]
    eps = max(held, default=0.0), (observation.tolerance or 0.0) / 4
    return replace(
        observation,
        eps=max(observation.eps, *eps), after_eps=max(observation.after_eps, *eps), loosest=np.inf,
    )  # fmt: skip


def _holds(array: Floats, dtype_name: str) -> bool:
    return bool((ROUNDERS[dtype_name](array) == array).all())


def _names(layers: tuple[Any, ...]) -> str:
    """Write layers; runs of numbers as ranges."""
    runs: list[list[Any]] = []
    for layer in layers:
        if runs and isinstance(layer, int) and runs[-1][-1] == layer - 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    texts = (f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
    return f"layer{'s' * (len(layers) > 1)} {', '.join(texts)}"
