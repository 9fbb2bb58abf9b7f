"""Compare rotations with the ropes of a config: from two arrays, from files of a cache, or layer by layer."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ._diagnose._differences import find_differences
from ._diagnose._mistakes import ROUNDERS
from ._diagnose._observation import EPS, Floats, Observation, host_floats, read_candidates, read_observation
from ._errors import ArrayTypeError, ShapeError, ranges, short
from ._rope import RoPE
from .config import read_layers

__all__ = ["Examination", "Finding", "examine"]

_REMEDIES = {
    "pairing": "change the code; or convert the weights of q and k, once, by convert.weights. If they are "
    "converted already, this is right",
    "base": "give the code rope_theta of the config, and the exponents 2i/rotary_dim",
    "scaling": "give the code rope_scaling (or rope_parameters) of the config",
    "frequencies": "compute inv_freq in float32, and keep it so when the model is cast",
    "factor": "multiply cos and sin by attention_factor of the rule, once",
    "positions": "give each row of the batch its own position_ids, counted without padding",
    "rotated part": "give the code partial_rotary_factor, or the head_dim of the rotated part, of the config",
    "coordinates": "give the code mrope_section of the config, and positions for each coordinate",
    "direction": "check the sign of sin",
    "rotated twice": "remove one of the two calls: cached keys are rotated already",
    "not rotated": "call the rotation, with the positions of the tokens; the layer may be listed in "
    "no_rope_layers by mistake",
    "16-bit tables": "compute positions, angles, cos and sin in float32",
    "table too short": "make the table as long as max_position_embeddings, or as the longest sequence",
    "weights of the other pairing": "convert q and k, once, to the pairing of the code by convert.weights",
    "draft": "give the draft's config rope_parameters of the target's",
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

    Examples
    --------
    >>> import rope_array as ra
    >>> print(ra.Finding("base", (0, 1, 2, 5), "base 10000, expected base 500000", "give rope_theta"))
    layers 0-2, 5: base: base 10000, expected base 500000
      remedy: give rope_theta
    """

    kind: str
    layers: tuple[Any, ...]
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        where = f"{_names(self.layers)}: " if any(layer is not None for layer in self.layers) else ""
        return f"{where}{self.kind}: {self.text}\n  remedy: {self.remedy}"


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

    Examples
    --------
    >>> import rope_array as ra
    >>> print(ra.Examination(layers=(0, 1), findings=()))
    2 layers compared: no findings
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
        """Whether layers were compared, all of them, and each rotates as the config says."""
        return bool(self.layers) and not self.findings and not self.unseen

    def __str__(self) -> str:
        layers, findings = len(self.layers), len(self.findings)
        counts = f"{layers} layer{'s' * (layers != 1)}", f"{findings or 'no'} finding{'s' * (findings != 1)}"
        lines = [f"{counts[0]} compared: {counts[1]}"]
        lines += [f"  {line}" for finding in self.findings for line in str(finding).splitlines()]
        return "\n".join([*lines, *(f"  not seen: {name}: {reason}" for name, reason in self.unseen)])


def examine(
    before: Any,
    after: Any,
    pos: Any,
    expected: Any,
    *,
    seq_axis: int = -2,
    rotated: bool = False,
    tolerance: float | None = None,
) -> Examination:
    """Compare rotations, such as the keys in a cache, with a config: name the field that differs.

    Parameters
    ----------
    before, after : array, list or dict of arrays, or path
        Queries or keys of shape (..., S, head_dim) before and after the rotation: of one layer, or of layers
        by their order or their names; or a file .npz or .safetensors with an array for each layer, whose
        names have the numbers of the layers.
    pos
        The positions of all layers, as in `rope_array.apply`.
    expected : RoPE, or config
        The rope of all layers; or a config as for `config.read_layers`, with the rope of each layer.
    seq_axis : int
        The axis of the positions.
    rotated : bool
        Whether `before` has been rotated as expected: the cache of a reference, whose keys are rotated back.
    tolerance : float, optional
        The largest accepted error, relative to a pair, if it is above the rounding of the dtypes. Float32
        arrays with bfloat16 numbers count as bfloat16; float32 angles are accepted at every position.

    Returns
    -------
    Examination
        Without findings if all layers rotate as expected.

    Raises
    ------
    ArrayTypeError, ShapeError, SpecError, ConfigError
        As by `diagnose`; `before` and `after` have other layers; a file has no arrays that can be read.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_array as ra
    >>> x = np.random.default_rng(0).standard_normal((2, 64, 32)).astype("float32")
    >>> y = ra.apply(x, range(64), pairing="half")
    >>> print(ra.examine(x, y, range(64), ra.RoPE(32, base=500_000.0, pairing="half")))
    1 layer compared: 1 finding
      base: base 10000, expected base 500000
        remedy: give the code rope_theta of the config, and the exponents 2i/rotary_dim
    """
    befores, afters = _by_layer(before), _by_layer(after)
    if befores.keys() != afters.keys():
        raise ShapeError(
            f"before has the layers {short([*befores])}, and after {short([*afters])}; give the same layers."
        )
    if befores.keys() == {None} and not isinstance(expected, RoPE):
        expected = RoPE.from_config(expected)  # which raises if layers differ
    ropes = ropes_of(expected)
    findings, unseen = [], []
    options: dict[str, Any] = {"seq_axis": seq_axis, "rotated": rotated, "tolerance": tolerance}
    for layer, x in befores.items():
        if rope := ropes.get(_number(layer), ropes.get(None)):
            findings += findings_of(x, afters[layer], pos, rope, layer=layer, **options)
        else:
            unseen.append((str(layer), "the config has several ropes, and no layer of this number"))
    seen = (layer for layer in befores if str(layer) not in dict(unseen))
    return Examination(tuple(seen), tuple(findings), tuple(unseen))


def ropes_of(expected: Any) -> dict[int | None, RoPE]:
    """Return the ropes of layers by their numbers; under None the rope of all, if there is only one."""
    if isinstance(expected, RoPE):
        return {None: expected}
    groups = read_layers(expected)
    all_layers = (None,) * (len(groups) == 1)
    return {number: reading.rope for layers, reading in groups for number in (*layers, *all_layers)}


def _by_layer(arrays: Any) -> dict[Any, Any]:
    """Return arrays by the numbers of their layers, or by their names if the numbers are not unique."""
    if isinstance(arrays, (str, PathLike)):
        arrays = _read_file(Path(arrays))
    if isinstance(arrays, (list, tuple)):
        arrays = dict(enumerate(arrays))
    if not isinstance(arrays, Mapping):
        return {None: arrays}
    names = sorted(arrays, key=lambda name: [int(n) for n in re.findall(r"\d+", str(name))])
    numbers = [*map(_number, names)]
    layers = numbers if len({*numbers} - {None}) == len(names) else names
    return {layer: arrays[name] for layer, name in zip(layers, names, strict=True)}


def _number(layer: Any) -> int | None:
    """Return the first number in the name of a layer."""
    found = re.search(r"\d+", str(layer))
    return int(found[0]) if found else None


_SAFETENSORS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def _read_file(path: Path) -> dict[str, Any]:
    """Return the arrays of a file; bfloat16 numbers in float32."""
    if path.suffix not in (".npz", ".safetensors"):
        name = short(str(path))
        raise ArrayTypeError(f"{name} is no .npz and no .safetensors; give such a file, or arrays.")
    try:
        return dict(np.load(path)) if path.suffix == ".npz" else _read_safetensors(path.read_bytes())
    except (OSError, KeyError, TypeError, ValueError) as error:  # JSON's and Unicode's are ValueErrors
        raise ArrayTypeError(
            f"{short(str(path))} cannot be read ({type(error).__name__}: {short(str(error))}); give a file "
            f"of numbers in {', '.join(_SAFETENSORS)}."
        ) from error


def _read_safetensors(content: bytes) -> dict[str, Any]:
    """Return the arrays of a file: the size of the header in 8 bytes, the header in JSON, the numbers."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__", None)
    arrays = {}
    for name, entry in header.items():
        first, end = entry["data_offsets"]
        array = np.frombuffer(content[start + first : start + end], _SAFETENSORS[entry["dtype"]])
        if entry["dtype"] == "BF16":
            array = (array.astype(np.uint32) << 16).view(np.float32)
        arrays[name] = array.reshape(entry["shape"])
    return arrays


def finding_of(kind: str, layers: tuple[Any, ...], text: str) -> Finding:
    """Return a finding with the remedy of its kind."""
    return Finding(kind, layers, text, _REMEDIES[kind])


def findings_of(
    before: Any,
    after: Any,
    pos: Any,
    rope: RoPE,
    *,
    layer: Any,
    seq_axis: int = -2,
    rotated: bool = False,
    tolerance: float | None = None,
) -> list[Finding]:
    """Return the differences between a rotation of a layer and the rope that is expected of it."""
    x, y = host_floats(before, "before"), host_floats(after, "after")
    if not x.any():
        raise ShapeError("before has only zeros, which show no rotation; give other features.")
    if x.shape == y.shape and (np.isfinite(x) & ~np.isfinite(y).all(-1, keepdims=True)).all(-1).any():
        remedy = "look for NaN and infinity in inv_freq, cos and sin"
        return [Finding("unexplained", (layer,), "finite rows become NaN or infinite", remedy)]
    observation = _of_values(read_observation(before, after, pos, seq_axis, tolerance))
    if rope.scaling is not None and not rope.scaling.resolved:
        rope = rope.at_length(int(observation.reach) + 1)
    read_candidates([rope], observation.shape[-1], "expected")  # checks head_dim
    differences = find_differences(observation, rope, rotated)
    return [finding_of(kind, (layer,), text) for kind, text in differences]


def _of_values(observation: Observation) -> Observation:
    """Return an observation with the precision of its values: float32 arrays may hold bfloat16 numbers.

    Float32 angles are right at every position, and float32 tables. A tolerance counts as a precision.
    """
    held = [EPS[name] for name in ROUNDERS if _holds(observation.y, name)]
    eps = EPS["float32"], *held, (observation.tolerance or 0.0) / 4
    return replace(
        observation,
        eps=max(observation.eps, *eps), after_eps=max(observation.after_eps, *eps), loosest=np.inf,
    )  # fmt: skip


def _holds(array: Floats, dtype_name: str) -> bool:
    return bool((ROUNDERS[dtype_name](array) == array).all())


def _names(layers: tuple[Any, ...]) -> str:
    """Write layers; numbers as ranges, before names."""
    numbers = sorted(layer for layer in layers if isinstance(layer, int))
    texts = (ranges(numbers), *(str(layer) for layer in layers if not isinstance(layer, int)))
    return f"layer{'s' * (len(layers) > 1)} {', '.join(filter(None, texts))}"
