"""From a Hugging Face config to the fields of a `RoPE`: no transformers, no array library, no network.

A config says some of what a rotary embedding is; the rest is in the model's code and in its class's defaults.
The way of a reading:

1. `_document`: load the config and find the part that is read, with its class's defaults (`_model_defaults`)
   and what its code does (`_models`, `_models_vision`). The part, a `Spot`, keeps the record.
2. `_reader`: find the rotary parameters of the layer that is asked for (`_tables` reads and checks values,
   `_layers` knows the type of each layer).
3. `_module`: make the fields of the rope; the scaling rule by its `rope_type` (`_rules`), from the parameters
   of one kind of layer (`_layer`).
4. `_unread`: refuse or note what looks rotary and was read by none of these.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rope_array._config._document import Document, Spot, load, locate, plain
from rope_array._config._reader import Reader
from rope_array._errors import ConfigError, SpecError

__all__ = ["fields", "refusals"]


def fields(
    config: Any, part: str | None = None, layer_type: str | int | None = None
) -> tuple[dict[str, Any], Spot]:
    """Return the fields of the rope that a config states, and the part read, with its record."""
    document = load(config)
    with refusals(document):
        spot = locate(document.content, document.class_name, plain(part))
        convention = spot.convention()
        if convention.refusal:
            raise ConfigError(f"{spot.name}: {convention.refusal}. RoPE cannot state it.")
        return Reader(spot, convention, plain(layer_type)).fields(), spot


@contextmanager
def refusals(config: Any) -> Iterator[None]:
    """Make a `ConfigError` of all that is wrong with a config, the fields that no `RoPE` takes too."""
    try:
        yield
    except ConfigError:
        raise
    except RecursionError:
        raise ConfigError("the config is nested too deeply, or holds itself.") from None
    except (SpecError, ArithmeticError) as problem:
        raise ConfigError(f"{_name_of(config)}: {problem}") from None


def _name_of(config: Any) -> str:
    return config.name if isinstance(config, Document) else load(config).name
