"""The convention of an unknown model type: the most common one, unless a key tells that it is not that."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any

from rope_array._config._convention import Convention
from rope_array._config._conventions import CONVENTIONS, known_convention
from rope_array._config._model_defaults import MODELS, ROTARY, WITHOUT
from rope_array._config._tables import KEYS, PATTERNS
from rope_array._errors import ConfigError, short

# The remedy where only the model's code tells how it rotates.
BY_HAND = "the model's code, and write RoPE(head_dim, base=..., rotary_dim=..., pairing=...) by it"
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z0-9]+")
_SIZE = re.compile(r"\d|_?(?:b|k|m|bits?)(?![a-z])")  # the 4 of "llama-4b" is no version
_READ_ELSEWHERE = frozenset((*KEYS["bases"], "no_rope_layers", "no_rope_layer_interval"))
_PARAMETERS = ("rope_parameters", "rope_scaling")


def generic(name: str, content: Mapping[str, Any]) -> Convention:
    """Return the convention for an unknown model type: the most common one, with the keys of older models."""
    _refuse_other_embeddings(name, content)
    _refuse_inner(name, content)
    _refuse_two_values(name, content, KEYS["bases"])
    _refuse_other_bases(name, content)
    interleaved = _is_interleaved(name, content)
    if interleaved is None:
        _refuse_children(name, content)
    if content.get("qk_rope_head_dim"):  # 0 in a model without latent attention
        return _latent(name, interleaved)
    _refuse_two_values(name, content, [key for key in KEYS["widths"] if "/" not in key])
    parameters = content.get("rope_parameters") or content.get("rope_scaling")
    sections = isinstance(parameters, Mapping) and parameters.get("mrope_interleaved") is True
    return Convention(
        pairing="interleaved" if interleaved else "half",
        width=tuple(KEYS["widths"]),
        absolute=True,
        theta_keys=tuple(KEYS["bases"]),
        share_keys=tuple(KEYS["shares"]),
        sections="interleaved" if sections else "chunked",
    )


def reads(key: str, content: Mapping[str, Any]) -> bool:
    """Return whether a key of an unknown model type is read here: the pairing, or whether it rotates."""
    value = content.get(key)
    on = value is True and PATTERNS["switch"].match(key) is not None
    return on or key in KEYS["pairings"] or (key == "qk_rope_head_dim" and value == 0)


def may_change(name: str, key: str, value: Any) -> str:
    """Return the message on a key of an unknown model type that no step reads."""
    return f"{name} is unknown, and {key} is {short(value)}, which may change the rotation; read {BY_HAND}."


def _latent(name: str, interleaved: bool | None) -> Convention:
    """Return the convention of latent attention, whose models pair halves as often as neighbours."""
    if interleaved is None:
        raise ConfigError(
            f"{name} is unknown and has latent attention (qk_rope_head_dim), where models differ in the "
            f"pairs that they read and write; read {BY_HAND}, with out_pairing if it reorders features."
        )
    return known_convention("deepseek_v3" if interleaved else "minicpm3")


def _is_interleaved(name: str, content: Mapping[str, Any]) -> bool | None:
    """Return whether a key states interleaved pairs; None if none states the pairing."""
    flags = {key: content[key] for key in KEYS["pairings"] if content.get(key) is not None}
    for key, value in flags.items():
        if not isinstance(value, bool):
            raise ConfigError(f"{key} is {short(value)}; it must be true or false.")
    pairings = {key: value is KEYS["pairings"][key] for key, value in flags.items()}
    for key, value in content.items():
        kind = _kind_of(value) if isinstance(key, str) and PATTERNS["kind"].match(_snake(key)) else None
        if kind in ("half", "interleaved"):
            pairings[key] = kind == "interleaved"
    if len({*pairings.values()}) > 1:
        raise ConfigError(f"{name}: {', '.join(pairings)} contradict each other on the pairing.")
    return next(iter(pairings.values()), None)


def _kind_of(embedding: Any) -> str | None:
    """Return what the name of a position embedding states: "plain", "half", "interleaved", or None."""
    word = embedding.lower().replace("-", "_") if isinstance(embedding, str) else None
    return next((kind for kind, names in KEYS["embedding_names"].items() if word in names), None)


def contradicts(key: str, value: Any, pairing: str) -> bool:
    """Return whether a key or its value names another position embedding than a rotation with a pairing."""
    if value is True:
        return PATTERNS["embeddings"].search(key.lower()) is not None
    if not isinstance(value, str) or not PATTERNS["kind"].match(key):
        return False
    kind = _kind_of(value)
    return (
        kind not in (pairing, "plain") if kind else PATTERNS["embeddings"].search(value.lower()) is not None
    )


def _refuse_children(name: str, content: Mapping[str, Any]) -> None:
    """Refuse to guess the pairs of a model that may be of a family whose code pairs neighbours."""
    families = (family for word in islice(_model_names(content), 32) if (family := _interleaved_family(word)))
    remedy, family = f"read {BY_HAND}", next(families, None)
    for row in KEYS["children"]:
        if all(content.get(key) is not None for key in row["keys"]):
            family, remedy = row["family"], row.get("remedy", "") + remedy
    if family:
        raise ConfigError(
            f"{name} is unknown, and may be a child of {family}, whose code pairs neighbours; {remedy}."
        )


def _model_names(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of a model's type, of its classes, and of their modules on the hub."""
    classes, modules = content.get("architectures"), content.get("auto_map")
    names = [content.get("model_type"), *(classes if isinstance(classes, list) else ())]
    for value in modules.values() if isinstance(modules, Mapping) else ():
        names += value if isinstance(value, (list, tuple)) else [value]
    for name in names:
        if isinstance(name, str):
            yield name[:400].rpartition("--")[2]  # without the repository of a module


def _interleaved_family(name: str) -> str | None:
    """Return the known model type in a name whose code pairs neighbours; None if there is none.

    A longer model type takes the place of those within it: GLM-4 MoE pairs halves, and GLM-4 neighbours.
    """
    words, families, covered = _snake(name), _families(), 0
    longest = max(map(len, families))
    letters = words.replace("_", "")
    places = [i for i, letter in enumerate(words) if letter != "_"]
    for start in range(len(letters)):
        for end in range(min(start + longest, len(letters)), max(start, covered), -1):
            family = letters[start:end]
            if family in families and not (family[-1].isdigit() and _SIZE.match(words, places[end - 1] + 1)):
                covered = end
                if families[family]:
                    return families[family]
                break
    return None


@cache
def _families() -> dict[str, str]:
    """Return the known model types, in letters and digits; the values are empty for half pairs."""
    families: dict[str, str] = {}
    for key in (*WITHOUT, *MODELS, *ROTARY, *CONVENTIONS):
        if ":" not in key:
            interleaved = _pairing_of(key) == "interleaved"
            for model_type in {key, key.removesuffix("_text")}:
                letters = _snake(model_type).replace("_", "")
                families[letters] = families.get(letters, "") or (model_type if interleaved else "")
    return {**families, **{letters: name for name, letters in KEYS["other_interleaved"].items()}}


def _pairing_of(key: str) -> str | None:
    """Return the pairing of a known model type, or of its main part; None if it has no rotation."""
    parts = MODELS.get(key, {}).get("parts", {})
    mains = [parts[name] for name in ("text", "thinker", "decoder", "dit") if name in parts]
    if key not in CONVENTIONS and mains and mains[0] != key:
        return _pairing_of(mains[0])
    return known_convention(key).pairing if key in CONVENTIONS or key in ROTARY else None


def _snake(name: str) -> str:
    """Return a name in snake case: useAlibi and use-alibi are use_alibi."""
    return name if name.islower() and name.isidentifier() else _WORDS.sub("_", name).strip("_").lower()


def _refuse_other_embeddings(name: str, content: Mapping[str, Any]) -> None:
    """Refuse a config that states a position embedding other than a rotation, or layers without one."""
    for stated_key, value in content.items():
        if not isinstance(stated_key, str) or value is None or stated_key in KEYS["pairings"]:
            continue
        key = _snake(stated_key)
        off = value is False and PATTERNS["switch"].match(key)
        is_one = value == 1 and value is not True
        neutral = value in (0, [], {}) or (
            is_one and key.endswith(("factor", "scale", "scaling"))
        )  # False is 0
        is_latent = PATTERNS["latent"].search(key) and not content.get("qk_rope_head_dim")
        is_other_spelling = key != stated_key and PATTERNS["rotary"].search(key)
        is_unread = is_latent or is_other_spelling or PATTERNS["other"].search(key)
        may_change_it = stated_key not in _READ_ELSEWHERE and is_unread
        if _is_other_kind(key, value) or off or (may_change_it and not neutral):
            raise ConfigError(may_change(name, stated_key, value))


def _is_other_kind(key: str, value: Any) -> bool:
    """Return whether a key names a position embedding that is no plain rotation, or latent attention."""
    if not isinstance(value, str):
        return False
    if PATTERNS["kind"].match(key):
        return _kind_of(value) is None
    if PATTERNS["no_rotation"].search(_snake(value)) and not key.startswith(("_", "model", "name")):
        return True
    return (
        PATTERNS["attention"].search(key) is not None
        and PATTERNS["other_kinds"].search(value.lower()) is not None
    )


def _refuse_inner(name: str, content: Mapping[str, Any]) -> None:
    """Refuse rotary keys in an object within the config, which no step reads."""
    for key, value in content.items():
        if not isinstance(key, str) or not isinstance(value, Mapping) or key in _PARAMETERS:
            continue
        for inner, flag in value.items():
            is_kind = isinstance(inner, str) and PATTERNS["no_rotation"].search(_snake(inner))
            if is_kind and flag and not PATTERNS["other_parts"].search(key):
                raise ConfigError(may_change(f"{name}, {short(key)}", inner, flag))
        has_rotary_key = any(isinstance(inner, str) and PATTERNS["rotary"].search(inner) for inner in value)
        if PATTERNS["inner"].search(key):
            _refuse_other_embeddings(f"{name}, {short(key)}", value)
            _refuse_inner(name, value)
        is_of_model = PATTERNS["inner"].search(key) or not key.endswith(
            "_config"
        )  # others are parts of the model
        if (is_of_model and has_rotary_key) or PATTERNS["rotary"].search(key) or PATTERNS["kind"].match(key):
            raise ConfigError(
                f"{name} is unknown, and {short(key)} has rotary parameters in a form of its own; read "
                f"{BY_HAND}."
            )


def _refuse_other_bases(name: str, content: Mapping[str, Any]) -> None:
    """Refuse a base under a key of other libraries that no step reads, unless it is the base that is read."""
    inner = (content.get(key) for key in _PARAMETERS)
    places = (content, *(rule for rule in inner if isinstance(rule, Mapping)))
    stated = [place[key] for place in places for key in KEYS["bases"] if place.get(key) is not None]
    for key, value in content.items():
        is_base = isinstance(key, str) and _snake(key) in KEYS["other_bases"]
        if is_base and value and isinstance(value, (int, float)) and value != (stated or [1e4])[0]:
            raise ConfigError(may_change(name, key, value))


def _refuse_two_values(name: str, content: Mapping[str, Any], keys: Sequence[str]) -> None:
    values = {key: content[key] for key in keys if content.get(key) is not None}
    first = next(iter(values.values()), None)
    if any(value != first for value in values.values()):
        listed = ", ".join(f"{key} {short(value)}" for key, value in values.items())
        raise ConfigError(f"{name} is unknown, and states {listed}; read {BY_HAND}.")
