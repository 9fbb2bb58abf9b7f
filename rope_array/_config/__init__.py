"""From a model's config to the fields of a `RoPE`: no transformers, no array library, no network.

A config states only some of a rotary embedding; the rest is in the model's code and its class's defaults.
`_formats` recognises configs that are not Hugging Face's, with `_formats_of_engines`, `_gguf` and
`_diffusers`, and returns their `Format` (`_format`), with a convention of its own. Modules that few configs
need are imported when one needs them: these three, `_file`, `_rules`, and the modules of functions.
The steps of a reading:

1. `_document` loads the config, from a file with `_file`. `_locate` finds the part to read, with its class's
   defaults (`_model_defaults`), and the convention of its model (`_conventions`, by the rows of
   conventions.toml): a `ConfigPart` (`_part`), which no reading changes.
2. The functions that a convention names rewrite a family's own keys as the keys of Llama's config in
   transformers 5: `_variants` its content, `_layer_types` the types of its layers, `_parameters` its rotary
   parameters.
3. `_reader` reads one layer by these keys (`_layers`: its type, and why it may not rotate), with a record of
   its own. `_values` reads and checks values, and enters them in the record.
4. `_layer_rope` makes the fields of the rope (with `_maps`); the scaling rule by its `rope_type` (`_rules`),
   from the parameters of one layer type (`_layer`).
5. `_unused_keys` refuses or notes rotary keys that no step has read, and `_unread_values` refuses defaults
   of a class where the config states the values in another place or by another name.

`_cache` tells the positions that cached keys hold, by the kinds of caches.toml.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rope_array._config._convention import Note
from rope_array._config._document import Document, load, plain
from rope_array._config._locate import locate, variant_of, with_convention
from rope_array._config._part import ConfigPart
from rope_array._config._reader import Reader
from rope_array._config._unread_values import check_unread_values
from rope_array._config._values import MOST_LAYERS, PartValues
from rope_array._errors import ConfigError, SpecError, short

_MOST_KEYS_OF_A_PART = 1024  # `read_layers` looks at every key for each layer

__all__ = ["Document", "Note", "context", "fields", "find_part", "layer_count", "load", "refusals"]


def fields(
    document: Document, path: str | None, layer_type: str | int | None
) -> tuple[dict[str, Any], Reader]:
    """Return the fields of the rope that a config states, and the reader with the part, values and record."""
    reader = Reader(with_convention(find_part(document, path)), plain(layer_type))
    fields = reader.fields()
    if fields["rotary_dim"]:
        check_unread_values(reader.values, document)
    return fields, reader


def find_part(document: Document, path: str | None) -> ConfigPart:
    """Return a part of a document; by default the text part, or the whole."""
    config_part = locate(document.content, document.class_name, plain(path))
    if (count := max(len(config_part.content), len(config_part.above))) > _MOST_KEYS_OF_A_PART:
        raise ConfigError(f"the config has {count} keys in one object; give at most {_MOST_KEYS_OF_A_PART}.")
    return variant_of(config_part)


def context(config_part: ConfigPart) -> int | None:
    """Return the number of positions that a model is made for, None if its config and class state none."""
    return _known_count(config_part, "max_position_embeddings")


def layer_count(config_part: ConfigPart) -> int:
    """Return the number of layers, 0 if it is unknown."""
    count = _known_count(config_part, "num_hidden_layers") or 0
    if count > MOST_LAYERS:
        raise ConfigError(f"num_hidden_layers is {short(count)}; give at most {MOST_LAYERS}.")
    return count


def _known_count(config_part: ConfigPart, name: str) -> int | None:
    """Return a stated number or the class's default, without a record; None for all but integers above 0."""
    value = PartValues(config_part).get(name)
    return value if type(value) is int and value > 0 else None


@contextmanager
def refusals(document: Document) -> Iterator[None]:
    """Convert every error of a reading to a `ConfigError`, fields that `RoPE` refuses included."""
    try:
        yield
    except ConfigError:
        raise
    except RecursionError:
        raise ConfigError("the config is nested too deeply, or holds itself.") from None
    except (SpecError, ArithmeticError) as problem:
        raise ConfigError(f"{document.name}: {problem}") from None
