"""A `Convention`: the parts of a rotation that a config leaves to the model's code."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Pairing = Literal["interleaved", "half"]
# Functions of a convention take a `PartValues` first.
Function = Callable[..., Any]
NoteKind = Literal["doubt", "fact", "unrotated"]


class Note(str):
    """A note of a reading, with its kind: a fact, a doubt to check, or the reason that nothing rotates."""

    kind: NoteKind

    def __new__(cls, text: str, kind: NoteKind = "doubt") -> "Note":
        note = super().__new__(cls, text)
        note.kind = kind
        return note


def note_of(value: str | Mapping[str, str]) -> Note:
    """Return the note of a row; `fact` marks one that leaves nothing to check."""
    return Note(value) if isinstance(value, str) else Note(value["fact"], "fact")


@dataclass(frozen=True, kw_only=True)
class Convention:
    """The behaviour of one rotary module that its config does not state.

    Attributes
    ----------
    pairing, out_pairing
        The pairing of features read and written.
    width
        Keys of the head's width, the first stated wins; ``"hidden_size/num_attention_heads"`` divides, a
        number before ``*`` multiplies, a number alone is a constant of the code, and ``"layer.key"`` is the
        layer's value in `per_layer_config`.
    rotated
        The rotated width, from the part's values and the head's width. None: the share of the width that
        `partial_rotary_factor` states, cut to a whole number.
    partial
        False: the model's default rule ignores `partial_rotary_factor` (scaling rules use it).
    share
        The rotated share of the head under the model's default rule if the config states none.
    absolute
        `rotary_dim` states the rotated width, in features.
    start
        "first" or "last": the place of the rotated slice in the head.
    pairing_flag
        A key; if it is false, the pairing read and written is "half".
    sign
        -1 if the model rotates by negative angles.
    theta
        The base if neither the config nor the class defaults have a base.
    theta_keys, share_keys
        Keys, outside of the rotary parameters, of the base and of the rotated share of the head.
    bases
        The keys, outside of the rotary parameters, from which `parameters` takes the base of a layer type.
    axes
        The map of pairs to axes, from the part's values and the rotated width (None: one position).
    sections
        The layout of `mrope_section`: "chunked", "interleaved" or "alternating" (None: not read).
    default_sections
        The sections of a model whose code has them.
    scaling, inv_freq, attention_factor
        Computed from the part's values and the rotated width. None: by `rope_type`.
    drops
        The keys among `rope_parameters` and `rope_scaling` that the model's code ignores.
    by_layer_type
        The class reads parameters by layer type only, and drops flat parameters and an older `type`.
    rope_types
        The rope types that the module accepts (None: all).
    rope_type_aliases
        Rope types with another meaning in this model, and the meaning.
    parameters
        Rewrites the rotary parameters before they are read, from the part's values and the parameters.
    of_layer_type
        Conventions of single layer types that differ from this convention.
    overrides
        The values of a layer type that the class sets if the config states no `per_layer_config`.
    keys
        Further rotary keys that the model's code reads: they are neither refused nor noted.
    never
        The reason that the model's code rotates nothing, whatever the config states.
    nope
        Layer types without rotation.
    unrotated
        The reason that the layer of a reading has no rotation; empty if it rotates although its type is in
        `nope`; None: by its type.
    unless
        Keys with the values that the module needs; with other values the layer has no rotation.
    cache
        The kind of positions in cached keys, by its name in caches.toml. None: as the rope tells.
    refusal
        The reason, for an error, that this is no rotation of pairs.
    note
        A note for the reader of the result.
    variant
        Returns, from the part's content, changes of the convention, for a model type of several models, or
        the row that it is like; under "converted" the values that the class puts in place of stated ones.
    layer_type_of
        The type of a layer, from the part's values, the number of layers and the layer's index.
    layer_type_alias
        The name of a layer type in the model's code, from the part's values and the stated name.
    older_keys
        Keys of older configs that the class renames, and the names of their values. Keys that the class
        declares in its `attribute_map` are in `_model_defaults`.
    """

    pairing: Pairing = "half"
    out_pairing: Pairing | None = None
    width: tuple[str, ...] = ("head_dim", "hidden_size/num_attention_heads")
    rotated: Function | None = None
    partial: bool = True
    share: float = 1.0
    absolute: bool = False
    start: Literal["first", "last"] = "first"
    pairing_flag: str | None = None
    sign: int = 1
    theta: float = 10000.0
    theta_keys: tuple[str, ...] = ("rope_theta",)
    bases: Mapping[str, str] = field(default_factory=dict)
    share_keys: tuple[str, ...] = ("partial_rotary_factor",)
    axes: Function | None = None
    sections: Literal["chunked", "interleaved", "alternating"] | None = None
    default_sections: tuple[int, ...] | None = None
    scaling: Function | None = None
    inv_freq: Function | None = None
    attention_factor: Function | None = None
    drops: tuple[str, ...] = ()
    by_layer_type: bool = False
    rope_types: tuple[str, ...] | None = None
    rope_type_aliases: Mapping[str, str] = field(default_factory=dict)
    parameters: Function | None = None
    of_layer_type: "Mapping[str, Convention]" = field(default_factory=dict)
    overrides: Function | None = None
    keys: tuple[str, ...] = ()
    never: str | None = None
    nope: tuple[str, ...] = ()
    unrotated: Function | None = None
    unless: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    cache: str | None = None
    refusal: str | None = None
    note: Note | None = None
    variant: Function | None = None
    layer_type_of: Function | None = None
    layer_type_alias: Function | None = None
    older_keys: Mapping[str, str] = field(default_factory=dict)
