"""Read a model's config into a `RoPE`: no transformers, no array library, no network.

Reads configs of Hugging Face, Mistral, Meta, ExecuTorch, DeepSeek, gpt-oss and diffusers, and GGUF files. A
config states only some of a rotary embedding; the rest is in the model's code and its class's defaults.
`read` reports the origin of each value.
"""

from dataclasses import dataclass
from typing import Any

from . import _config
from ._config import _cache
from ._rope import RoPE as _RoPE

__all__ = ["CacheMoves", "LayerMoves", "Reading", "can_shift", "read", "read_layers"]


def __dir__() -> list[str]:
    return __all__


@dataclass(frozen=True)
class Reading:
    """The rotary embedding of a model's config, with the values that were stated or inferred.

    Attributes
    ----------
    rope : RoPE
        The rotary embedding.
    model_type : str or None
        The `model_type` of the config, or of the part read; diffusers' class, or GGUF's architecture.
    part : str or None
        The part read, such as "text" or "thinker.text"; None: the config itself.
    layer_type : str or int or None
        The `layer_type` of the call.
    stated : dict
        The keys of the config that were used, with their values.
    inferred : dict
        Values that the config does not state: class defaults of the model type, and constants of its code;
        under "format" the name of a format that is not Hugging Face's.
    notes : tuple of str
        Keys that are not used, layers that differ, and differences from transformers. The `kind` of a note is
        "doubt" if it leaves something to check, "fact" if not, "unrotated" if it tells why nothing rotates.
    context : int or None
        The positions that the model is made for, `max_position_embeddings`; None if it is not known.

    Examples
    --------
    >>> from rope_array.config import read
    >>> reading = read({"model_type": "glm", "head_dim": 128, "rope_scaling": {"type": "linear", "factor": 2,
    ...                                                                      "beta_fast": 32}})
    >>> reading.rope.scaling, reading.model_type
    (Linear(factor=2.0), 'glm')
    >>> reading.inferred["partial_rotary_factor"]
    0.5
    >>> reading.notes
    ("rope_type 'linear' does not use 'beta_fast'",)
    """

    rope: _RoPE
    model_type: str | None
    part: str | None
    layer_type: str | int | None
    stated: dict[str, Any]
    inferred: dict[str, Any]
    notes: tuple[_config.Note, ...]
    context: int | None = None


def read(config: Any, *, part: str | None = None, layer_type: str | int | None = None) -> Reading:
    """Read the rotary embedding of a model from its config.

    Parameters
    ----------
    config : str, PathLike, mapping or object with ``to_dict()``
        The path of a config.json, or of the folder that holds one; its content; or a config object. Also a
        params.json of Mistral, Meta or ExecuTorch, DeepSeek's inference config, gpt-oss's original config, a
        GGUF file, and a config.json or model object of diffusers.
    part : str, optional
        The part of a config of several: "text", "vision", "audio", or a path of sub-config keys with dots,
        with or without "_config" ("thinker.text"); "indexer" for the indexer of sparse attention. By default
        the config itself, or its text part.
    layer_type : str or int, optional
        A name in the config's `layer_types`, a key of its `rope_parameters`, or the index of a layer. Needed
        where layers differ in their frequencies. If some layers do not rotate, the default is the rope of
        the others, and a note names the layers without rotation.

    Returns
    -------
    Reading
        The rope, and the origin of each value.

    Raises
    ------
    ConfigError
        The config cannot be read or contradicts itself; a rope type or key is unknown; the model's "RoPE" is
        no rotation; layers differ in their frequencies, and `layer_type` is missing.

    Examples
    --------
    >>> from rope_array.config import read
    >>> reading = read({"model_type": "llama", "head_dim": 4, "rope_theta": 500000.0})
    >>> reading.rope.frequencies
    (1.0, 0.001414213562373095)
    >>> reading.stated
    {'rope_theta': 500000.0, 'head_dim': 4}
    >>> reading.inferred["pairing"]
    'half'
    """
    return _read(_config.load(config), part, layer_type)


def _read(document: _config.Document, part: str | None, layer_type: str | int | None) -> Reading:
    """Read a document."""
    with _config.refusals(document):
        fields, reader = _config.fields(document, part, layer_type)
        config_part, record = reader.config_part, reader.record
        return Reading(
            _RoPE(**fields),
            config_part.model_type,
            config_part.path or None,
            layer_type,
            record.stated,
            record.inferred,
            tuple(record.notes),
            _config.context(config_part),
        )


def read_layers(config: Any, *, part: str | None = None) -> tuple[tuple[tuple[int, ...], Reading], ...]:
    """Read the rotary embedding of every layer of a model, and group the layers that share one.

    Parameters
    ----------
    config, part
        As in `read`.

    Returns
    -------
    tuple of (tuple of int, Reading)
        For each rope of the model: the indices of its layers, and the reading of the first of them. One
        reading without indices if the number of layers is not known.

    Raises
    ------
    ConfigError
        As in `read`.

    Examples
    --------
    >>> from rope_array.config import read_layers
    >>> gemma = {"model_type": "gemma3_text", "num_hidden_layers": 8}
    >>> [(layers, reading.rope.base) for layers, reading in read_layers(gemma)]
    [((0, 1, 2, 3, 4, 6, 7), 10000.0), ((5,), 1000000.0)]
    """
    document = _config.load(config)
    with _config.refusals(document):
        count = _config.layer_count(_config.find_part(document, part))
    if not count:
        return (((), _read(document, part, None)),)
    readings = [_read(document, part, index) for index in range(count)]
    groups: dict[_RoPE, list[int]] = {}
    for index, reading in enumerate(readings):
        groups.setdefault(reading.rope, []).append(index)
    return tuple((tuple(indices), readings[indices[0]]) for indices in groups.values())


@dataclass(frozen=True)
class LayerMoves:
    """Layers of a model with the same answer to whether their cached keys may move to other positions.

    Attributes
    ----------
    layers : tuple of int
        Their indices; empty if the number of layers is not known.
    ok : bool
        Whether the keys may move, without a condition.
    rope : RoPE or None
        The rope for `convert.shift_keys`. None: no rotation moves these keys.
    reason : str
        Why, and what to do.

    Examples
    --------
    >>> from rope_array.config import can_shift
    >>> rotated, unrotated = can_shift({"model_type": "smollm3", "num_hidden_layers": 8}).groups
    >>> rotated.ok, rotated.rope.base, unrotated.layers, unrotated.rope
    (True, 2000000.0, (3, 7), None)
    """

    layers: tuple[int, ...]
    ok: bool
    rope: _RoPE | None
    reason: str

    def __str__(self) -> str:
        first = ", ".join(map(str, self.layers[:8])) + ", ..." * (len(self.layers) > 8)
        return f"layers {first or 'of any number'}: {'yes' if self.ok else 'no'}: {self.reason}"


@dataclass(frozen=True, repr=False)
class CacheMoves:
    """The answer of `can_shift`.

    Attributes
    ----------
    groups : tuple of LayerMoves
        The layers, grouped by rope and reason.

    Examples
    --------
    >>> from rope_array.config import can_shift
    >>> moves = can_shift({"model_type": "smollm3", "num_hidden_layers": 4})
    >>> moves.ok, [rope and rope.base for rope in moves.ropes]
    (True, [2000000.0, 2000000.0, 2000000.0, None])
    """

    groups: tuple[LayerMoves, ...]

    @property
    def ok(self) -> bool:
        """Whether the keys of all layers may move."""
        return all(group.ok for group in self.groups)

    @property
    def ropes(self) -> tuple[_RoPE | None, ...]:
        """The rope of each layer, for `convert.shift_keys` with the keys of all layers."""
        ropes = {index: group.rope for group in self.groups for index in group.layers}
        return tuple(ropes[index] for index in sorted(ropes))

    def __repr__(self) -> str:
        return "\n".join(map(str, self.groups))


def can_shift(config: Any, *, part: str | None = None) -> CacheMoves:
    """Tell whether the cached keys of a model may move to other positions, and how.

    The answer is about positions. Keys and values depend on the tokens that were attended to, too: moved keys
    equal newly computed ones only if these tokens have moved by the same distance.

    Parameters
    ----------
    config, part
        As in `read`.

    Returns
    -------
    CacheMoves
        Yes or no for each group of layers, its rope, and the reason.

    Raises
    ------
    ConfigError
        As in `read`, unless another position embedding of the model is known.

    Examples
    --------
    >>> from rope_array.config import can_shift
    >>> can_shift({"model_type": "smollm3", "num_hidden_layers": 8})
    layers 0, 1, 2, 4, 5, 6: yes: rotate its keys by convert.shift_keys
    layers 3, 7: yes: no rotation, and keys hold no position: leave them, or the layer's state, as they are
    >>> can_shift({"model_type": "gpt2"}).ok
    False
    """
    document = _config.load(config)
    with _config.refusals(document):
        config_part = _config.find_part(document, part)
        kind, count = _cache.kind_of_model(config_part), _config.layer_count(config_part)
    if kind is not None and not kind.ropes:
        return CacheMoves((LayerMoves(tuple(range(count)), kind.ok, None, kind.reason),))
    groups: dict[tuple[bool, _RoPE | None, str], tuple[int, ...]] = {}
    for index in range(count) if count else (None,):
        move = _move(_read(document, part, index), kind, f"{config_part.key}:indexer")
        groups[move] = (*groups.get(move, ()), *(() if index is None else (index,)))
    return CacheMoves(tuple(LayerMoves(layers, *move) for move, layers in groups.items()))


def _move(reading: Reading, kind: _cache.Kind | None, indexer: str) -> tuple[bool, _RoPE | None, str]:
    """Return the answer for a layer: whether its keys may move, by which rope, and the reason."""
    rope, is_guess = reading.rope, "convention" in reading.inferred
    is_unresolved = rope.scaling is not None and not rope.scaling.resolved
    kind = kind or _cache.KINDS["guess" if is_guess else "length" if is_unresolved else "rope"]
    if not rope.rotary_dim:
        return kind.ok, None, (_cache.KINDS["none"] if kind.ok else kind).reason
    remarks = {
        ", by a distance for each coordinate": rope.axes is not None,
        ", in the rotated part of a key": "qk_rope_head_dim" in {**reading.stated, **reading.inferred},
        "; its indexer's too, by the rope of part='indexer'": indexer in _cache.CONVENTIONS,
    }
    return kind.ok, rope, kind.reason + "".join(text for text, applies in remarks.items() if applies)
