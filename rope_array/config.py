"""Read a model's config into a `RoPE`: no transformers, no array library, no network.

Reads configs of Hugging Face, Mistral, Meta, ExecuTorch, DeepSeek, gpt-oss and diffusers, and GGUF files. A
config states only some of a rotary embedding; the rest is in the model's code and its class's defaults.
`read` reports the origin of each value.
"""

from dataclasses import dataclass
from typing import Any

from . import _config
from ._rope import RoPE as _RoPE

__all__ = ["Reading", "read", "read_layers"]


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
        fields, config_part, record = _config.fields(document, part, layer_type)
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
