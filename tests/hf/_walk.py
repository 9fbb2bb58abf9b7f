"""Every rotary class of transformers, and how each is compared with `RoPE.from_config`.

`_vision.CASES` has the classes with a code of their own, `_text.cases_without` makes the cases of all others
that `classes()` finds. A case makes its probes only when called, so that a model's module is imported only
for its own case. `PYTHONPATH=tests python -m hf._walk` writes the table of docs/models.md.
"""

import copy
import functools
import importlib
import inspect
import json
import pathlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import rope_array as ra

NAMES = re.compile("Rotary|RoPE|Rope|Rotat")
TABLE = pathlib.Path(__file__).parents[2] / "docs" / "models.md"
EQUAL = "equal"
EPS = 2.0**-24  # half a unit in the last place of float32, relative


@dataclass(frozen=True)
class Theirs:
    """A model's results for one array of positions, as float32 NumPy arrays.

    `inv_freq` (num_pairs,) and `cos`, `sin` (S, num_pairs) have one number per pair of features, in the order
    of our pairs. Each is None if the model does not provide it.
    """

    rotate: Callable[[tuple[np.ndarray, ...]], tuple[np.ndarray, ...]]  # each (B, H, S, head_dim)
    inv_freq: np.ndarray | None
    factor: float = 1.0
    cos: np.ndarray | None = None
    sin: np.ndarray | None = None


# Of a config without rotation.
UNROTATED = Theirs(lambda arrays: arrays, np.zeros(0, np.float32))


@dataclass(frozen=True)
class Probe:
    """A config of a rotary class, or one of its layer types.

    `theirs` takes positions as `RoPE.apply` does, (S,) or (S, coordinates).
    """

    config: Any
    theirs: Callable[[np.ndarray], Theirs]
    head_dim: int
    positions: tuple[np.ndarray, ...]
    part: str | None = None
    layer_type: str | int | None = None
    slack: float = 1.0  # a factor on the tolerance of the frequencies
    shown: bool = True  # False: not in the table, as the config is not a default
    equal_configs: tuple[Mapping[str, Any], ...] = ()  # configs as dicts, which are read the same


@dataclass(frozen=True)
class Case:
    """A class of `transformers.models.<model>`, and its expected result.

    `status` is "equal", or a reason that the table shows instead. Each push compares the first class of each
    row of `_text`, and each class without a row.
    """

    model: str
    cls: str
    probes: Callable[[], Iterable[Probe]] | None = None
    status: str = EQUAL
    row: Any = None

    @property
    def id(self):
        return f"{self.model}-{self.cls}"

    @property
    def on_push(self):
        return self.row is None or self.row.first == self.cls.removesuffix("RotaryEmbedding")


# Classes of transformers


def modeling(model):
    """Import a model's file."""
    return importlib.import_module(f"transformers.models.{model}.modeling_{model}")


def configuration(model):
    """Import a model's configuration file."""
    return importlib.import_module(f"transformers.models.{model}.configuration_{model}")


def config_class(model, name):
    """Return a class of the model's own configuration file."""
    return getattr(configuration(model), name)


def config_classes(model):
    """Return the config classes of a model's configuration file."""
    classes_of_file = [cls for cls in vars(configuration(model)).values() if hasattr(cls, "model_type")]
    return [cls for cls in classes_of_file if cls.__module__ == configuration(model).__name__]


def annotated_config(model, cls):
    """Return the config class that `cls.__init__` is annotated with."""
    owner = getattr(modeling(model), cls)
    annotation = inspect.signature(owner.__init__).parameters["config"].annotation
    names = re.findall(r"\w+Config", annotation) if isinstance(annotation, str) else []
    return getattr(modeling(model), names[0]) if names else annotation


def places(model, cls, paths=()):
    """Return (config class, path) of each place of the config of a class: in the whole config, then alone.

    `paths` are the places in the whole config that the annotation of the class does not tell.
    """
    inner, outers = annotated_config(model, cls), [cls for cls in config_classes(model) if cls.sub_configs]
    if "text_config" in inner.sub_configs and not paths:
        outers, paths = [inner], ("text",)
    if paths:  # the whole config comes last in its file
        inside, inner = [(outers[-1], path) for path in paths], type(at_part(outers[-1](), paths[-1]))
    else:
        inside = [(outer, path) for outer in outers for path in _paths(outer(), inner)]
        outermost = max((path.count(".") for _, path in inside), default=0)
        inside = [place for place in inside if place[1].count(".") == outermost]
    return [*inside, (inner, None)] if inner.model_type else inside


def _paths(config, cls):
    """Yield the path of each config of a class inside another."""
    for name, value in vars(config).items():
        if hasattr(value, "sub_configs"):
            path = name.removesuffix("_config")
            yield from [path] if type(value) is cls else (f"{path}.{inner}" for inner in _paths(value, cls))


def at_part(config, path):
    """Follow a dotted path, as `RoPE.from_config` takes it, through sub-configs."""
    for name in path.split(".") if path else ():
        config = getattr(config, f"{name}_config", None) or getattr(config, name)
    return config


def head_width(config):
    """Return the width of a head, as most attentions compute it."""
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def one_per_pair(table, repeats):
    """Undo a model's repetition of cos or sin to the full width."""
    half = table.shape[-1] // 2
    if repeats == "half":
        return table[..., :half]
    if repeats == "interleaved":
        return table[..., ::2]
    if repeats == "blocks":  # the first half of each block
        return np.concatenate([table[..., : half // 2], table[..., half : half + half // 2]], axis=-1)
    return table


def other(config):
    """Return a config with another base and heads of twice the width; None without a base."""
    parameters = getattr(config, "rope_parameters", None)
    if parameters is None or "rope_theta" not in parameters:
        return None
    config = copy.deepcopy(config)
    config.rope_parameters = {**parameters, "rope_theta": parameters["rope_theta"] * 1.75}
    if "head_dim" in config.to_dict() and config.head_dim:
        config.head_dim = 2 * config.head_dim
    elif getattr(config, "num_attention_heads", 1) % 2 == 0:
        config.num_attention_heads = config.num_attention_heads // 2
    return type(config)(**config.to_dict())  # some classes compute the width anew


@functools.cache
def classes():
    """Return (model, class) of every rotary class, read from the sources: importing all takes a minute."""
    folder = pathlib.Path(importlib.import_module("transformers.models").__path__[0])
    return {
        (file.parent.name, name)
        for file in folder.glob("*/modeling_*.py")
        for name in re.findall(r"^class (\w+)\(", file.read_text(encoding="utf-8"), re.MULTILINE)
        if NAMES.search(name)
    }


def cases():
    """Return all cases, ordered by model and class."""
    special = importlib.import_module("hf._vision").CASES
    ordinary = importlib.import_module("hf._text").cases_without(special)
    return sorted([*special, *ordinary], key=lambda case: (case.model, case.cls))


# Comparison


FORMS: Mapping[str, Callable[[Any], Any]] = {
    "dict": lambda config: config.to_dict(),
    "saved": lambda config: json.loads(config.to_json_string()),  # the content of config.json
    "older": lambda config: with_older_base(json.loads(config.to_json_string())),
}


def with_older_base(config):
    """Move the base out of rotary parameters that state nothing else, as in older files."""
    if not isinstance(config, dict):
        return config
    new = {key: with_older_base(value) for key, value in config.items()}
    rule = new.get("rope_parameters") or {}
    if {*rule} == {"rope_type", "rope_theta"} and rule["rope_type"] in ("default", "axial"):
        del new["rope_parameters"]
        new["rope_theta"] = rule["rope_theta"]
    return new


def ours(probe, config=None):
    """Read the probe's config, or another."""
    config = probe.config if config is None else config
    return ra.RoPE.from_config(config, part=probe.part, layer_type=probe.layer_type)


def frequency_tolerance(inv_freq):
    """Bound the error of a float32 frequency.

    The exponent of base^(2i/d) is rounded by up to 2^-25, and the power multiplies this error by at most
    ln(1e8) = 18.4. The power, the reciprocal and the few operations of a scaling rule are rounded too.
    """
    return 20 * EPS * np.abs(inv_freq) + 4 * EPS * np.max(np.abs(inv_freq), initial=0) * 1e-3


def angle_tolerance(pos, theirs, ours):
    """Bound the difference of the angles, (S, num_pairs): frequencies differ, and pos·ω is rounded."""
    far = np.abs(pos).reshape(pos.shape[0], -1).max(axis=-1, keepdims=True)
    return far * (np.abs(theirs - ours) + 2 * EPS * np.abs(ours)) + 4 * EPS


def _same(name, ours, theirs, tolerance):
    ours, theirs = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    if ours.shape != theirs.shape:
        return [f"{name}: shape {ours.shape}, theirs {theirs.shape}"]
    error = np.abs(ours - theirs)
    wrong = (~(error <= tolerance)).sum()
    return [f"{name}: {wrong} of {error.size} differ, by up to {error.max():.3g}"] if wrong else []


def _length(pos):
    return int(np.ceil(pos.max())) + 1


def differences(probe):
    """List the differences of the model and our reading of its config, and of other forms of the config."""
    rope, texts = ours(probe), []
    for form, make in FORMS.items():
        if (reading := ours(probe, make(probe.config))) != rope:
            texts.append(f"{form}: {reading}")
    texts += [f"{config}: {read}" for config in probe.equal_configs if (read := ours(probe, config)) != rope]
    for number, pos in enumerate(probe.positions):
        of_pos = _compare(probe, pos, rope.at_length(_length(pos)))
        texts += [f"positions {number}: {text}" for text in of_pos]
    return [f"part {probe.part}, layer {probe.layer_type}: {text}" for text in texts]


def _compare(probe, pos, rope):
    theirs = probe.theirs(pos)
    q, k = features(pos.shape[0], probe.head_dim)
    rotation = rope.rotation(pos, like=q)
    omega = rope.frequencies
    their_omega = omega if theirs.inv_freq is None else theirs.inv_freq
    omega, their_omega = (np.asarray([] if w is None else w, dtype=np.float64) for w in (omega, their_omega))
    texts = _same("inverse frequencies", omega, their_omega, probe.slack * frequency_tolerance(their_omega))
    texts += _same("attention factor", rope.amplitude, theirs.factor, 4 * EPS * abs(theirs.factor))
    error = angle_tolerance(pos, their_omega, omega if omega.shape == their_omega.shape else their_omega)
    for name in ("cos", "sin"):
        if (expected := getattr(theirs, name)) is not None:
            texts += _same(name, getattr(rotation, name), expected, abs(theirs.factor) * (error + 2 * EPS))
    for name, x, expected in zip("qk", (q, k), theirs.rotate((q, k)), strict=True):
        texts += _same(name, rotation.apply(x), expected, rotation_tolerance(x, error, theirs.factor))
    return texts


def other_bits(probe):
    """List the arrays of the model whose bits `angles="float32"` does not have, in PyTorch."""
    torch = importlib.import_module("torch")
    rope, texts = replace(ours(probe), angles="float32"), []
    for number, pos in enumerate(probe.positions if rope.rotary_dim else ()):
        theirs, at_length = probe.theirs(pos), rope.at_length(_length(pos))
        tables = at_length.rotation(torch.tensor(pos), like=torch.zeros(1))
        arrays = {"inv_freq": np.float32(at_length.frequencies), "cos": tables.cos, "sin": tables.sin}
        for name, array in arrays.items():
            expected = getattr(theirs, name)
            if expected is not None and not np.array_equal(array, np.float32(expected)):
                texts.append(f"positions {number}: {name} has other bits")
    return texts


def rotation_tolerance(x, angles, factor):
    """Bound the difference of x·cos ± x'·sin in each row: angles differ, and a few operations round."""
    angle = angles.max(axis=-1, keepdims=True, initial=0)
    return (angle + 8 * EPS) * max(1.0, abs(factor)) * 2**0.5 * np.abs(x).max()


def features(length, head_dim):
    """Return q (2, 4, S, D) and k (2, 2, S, D): heads are grouped, as in most models."""
    rng = np.random.default_rng(length * 1000 + head_dim)
    return (rng.standard_normal((2, heads, length, head_dim), dtype=np.float32) for heads in (4, 2))


# The table


def describe(rope):
    """Describe a rope in a few words."""
    if rope.rotary_dim == 0:
        return "none"
    to = "" if rope.out_pairing in (None, rope.pairing) else f" to {rope.out_pairing}"
    words = [f"{rope.pairing}{to}", f"base {rope.base:g}"]
    if rope.rotary_dim not in (None, rope.head_dim):
        start = f" from {rope.rotary_start}" if rope.rotary_start else ""
        words += [f"{rope.rotary_dim} of {rope.head_dim}{start}"]
    if rope.scaling is not None:
        factor = getattr(rope.scaling, "partial_rotary_factor", getattr(rope.scaling, "factor", None))
        words += [type(rope.scaling).__name__ + ("" if factor is None else f"({factor:g})")]
    if rope.axes is not None:
        counts = Counter(axis for axis in rope.axes.coordinates if axis is not None)
        words += [f"pairs {'+'.join(str(counts[axis]) for axis in sorted(counts))}"]
    return ", ".join(words)


def table():
    """Return docs/models.md with its counts, exceptions and rows written anew."""
    classes, exceptions = {}, []  # the classes of each rope
    for case in cases():
        probes = case.probes() if case.probes is not None else ()
        ropes = "; ".join(dict.fromkeys(describe(ours(probe)) for probe in probes if probe.shown))
        name = f"`{case.model}` `{case.cls}`"
        if case.status == EQUAL:
            classes.setdefault(ropes, []).append(name)
        else:
            exceptions.append(f"* {name}: {case.status}.")
    most_first = sorted(classes.items(), key=lambda item: (-len(item[1]), item[0]))
    rows = [f"| {ropes} | {', '.join(names)} |" for ropes, names in most_first]
    equal = sum(map(len, classes.values()))
    version = importlib.import_module("transformers").__version__
    page = TABLE.read_text(encoding="utf-8")
    for pattern, text in (
        (r"(?<=classes of transformers )\S+ \d+(?= classes)", f"{version}: {equal + len(exceptions)}"),
        (r"(?<=For )\d+(?= classes they agree)", str(equal)),
        (r"(?<=classes are:\n\n).*?(?=\n\n## )", "\n".join(exceptions)),
        (r"(?<=\| --- \| --- \|\n).*", "\n".join(rows) + "\n"),
    ):
        page, count = re.subn(pattern, lambda match, text=text: text, page, flags=re.DOTALL)
        assert count == 1, pattern
    return page


if __name__ == "__main__":
    TABLE.write_text(importlib.import_module("hf._walk").table(), encoding="utf-8")
