"""Functions of conventions: rotary parameters from a family's own keys, and values of its layer types."""

from collections.abc import Mapping, Sequence
from typing import Any

from rope_array._config._values import PartValues, is_among
from rope_array._config._variants import divides_positions
from rope_array._errors import SpecError, short

Parameters = dict[str, Any]


def by_layer_type(
    values: PartValues, parameters: Parameters, bases: Mapping[str, tuple[str, float]], scaled: Sequence[str]
) -> Parameters:
    """Return parameters with a base for each layer type; older configs scale the types `scaled`."""
    nested = {k: v for k, v in parameters.items() if isinstance(v, Mapping)}
    flat = {k: v for k, v in parameters.items() if k not in bases}
    by_type: Parameters = {}
    for label, (key, base) in bases.items():
        rule = nested.get(label) if nested else (flat if label in scaled else None)
        by_type[label] = {"rope_theta": values.base(key, base) if key else base, **(rule or {})}
    return by_type


def neomme(values: PartValues, parameters: Parameters) -> Parameters:
    defaults = {"full_attention": (1e6, 0.25), "sliding_attention": (1e4, 1.0)}
    for key in sorted(parameters.keys() - defaults):
        values.record.note(f"{key} outside of the parameters of layer types is not used")
    if (share := values.get("partial_rotary_factor")) is not None:
        values.record.note(f"partial_rotary_factor {share} is not used: it has one for each layer type")
    return {
        label: {
            "rope_theta": values.number("rope_theta", base),
            "partial_rotary_factor": share,
            **(parameters.get(label) or {}),
        }
        for label, (base, share) in defaults.items()
    }


def deepseek_v4(values: PartValues, parameters: Parameters) -> Parameters:
    """Scale only the layers with a compressor, with an amplitude of 1."""
    if isinstance(parameters.get("main"), Mapping) and isinstance(parameters.get("compress"), Mapping):
        return {"main": parameters["main"], "compress": parameters["compress"]}
    share = _share_of_v4(values)
    rule = {k: v for k, v in parameters.items() if k not in ("main", "compress")}
    main = {"rope_theta": values.base("rope_theta", 1e4), "partial_rotary_factor": share}
    compress = {**rule, "rope_theta": values.base("compress_rope_theta", 1.6e5)}
    compress["partial_rotary_factor"] = share
    if compress.get("rope_type", compress.get("type")) == "yarn":
        compress.setdefault("attention_factor", 1.0)
    return {"main": main, "compress": compress}


def _share_of_v4(values: PartValues) -> float:
    if values.get("partial_rotary_factor") is not None:
        return values.number("partial_rotary_factor")
    head = values.integer("head_dim", 512)
    return (
        values.integer("qk_rope_head_dim") / head if values.get("qk_rope_head_dim") is not None else 64 / 512
    )


def dots3_note(values: PartValues, parameters: Parameters) -> Parameters:
    bases = {"sliding_attention": values.base("swa_rope_theta", 5e4)}
    base = values.base("rope_theta", 8e7)
    labels = values.layer_types() or ("indexed_attention", "sliding_attention")
    if any(isinstance(parameters.get(label), Mapping) for label in labels):
        return parameters
    if parameters or values.stated("rope_parameters") is not None:
        return {label: {"rope_theta": base, **parameters} for label in labels}
    return {label: {"rope_theta": bases.get(label, base)} for label in labels}


def dots3_sliding(values: PartValues, label: str) -> Mapping[str, Any]:
    if label != "sliding_attention":
        return {}
    if values.get("swa_qk_rope_head_dim") is not None:
        return {"qk_rope_head_dim": values.integer("swa_qk_rope_head_dim")}
    width = values.integer("swa_head_dim", 256) - values.integer("swa_qk_nope_head_dim", 192)
    return {"qk_rope_head_dim": width}


def step3p7(values: PartValues, parameters: Parameters) -> Parameters:
    labels = values.layer_types() or ("full_attention",)
    if all(isinstance(parameters.get(label), Mapping) for label in labels):
        return {label: parameters[label] for label in labels}
    flat = {k: v for k, v in parameters.items() if not isinstance(v, Mapping)}
    bases = None if values.is_null("rope_theta") else values.get("rope_theta", 1e4)
    shares = values.get("partial_rotary_factors")
    types = list(values.types_of_layers()) or labels
    by_type: Parameters = {}
    for label in labels:
        index = types.index(label)
        by_type[label] = {"rope_theta": _nth("rope_theta", bases, index)}
        if shares:
            by_type[label]["partial_rotary_factor"] = _nth("partial_rotary_factors", shares, index)
        if label == "full_attention":
            by_type[label].update(flat)
    return by_type


def _nth(name: str, values: Any, index: int) -> Any:
    if not isinstance(values, (list, tuple)):
        return values
    if index >= len(values):
        raise SpecError(f"{name} has {len(values)} values and layer_types more; give one for each layer.")
    return values[index]


def ultrabert(values: PartValues, parameters: Parameters) -> Parameters:
    if parameters or values.stated("rope_parameters") is not None:
        return parameters
    bases = values.get("rope_theta")
    if bases is None:
        return {"sliding_attention": {"rope_theta": 1e4}, "full_attention": {"rope_theta": 2.56e6}}
    if not isinstance(bases, (list, tuple)):
        raise SpecError(f"rope_theta is {short(bases)}; give a base for each layer.")
    types = values.types_of_layers()
    return {label: {"rope_theta": base} for label, base in zip(types, bases, strict=False)}


def dbrx(values: PartValues, parameters: Parameters) -> Parameters:
    """Leave out the class's own base, which a config object has in addition to the base of `attn_config`."""
    nested, base = (values.stated(key) for key in ("attn_config.rope_theta", "rope_theta"))
    base = parameters.get("rope_theta", base)
    if nested is None:
        return parameters
    if base not in (None, nested, 1e4):
        raise SpecError(
            f"attn_config.rope_theta is {short(nested)}, and rope_theta {short(base)}; leave one out."
        )
    if parameters.get("rope_theta") == nested:
        return parameters
    values.record.note("attn_config.rope_theta is honoured here; transformers 5.24 does not read it")
    return {key: value for key, value in parameters.items() if key != "rope_theta"}


def molmo2(values: PartValues, parameters: Parameters) -> Parameters:
    """Leave out the rule in layers that `rope_scaling_layers` does not list, and in the type "unscaled"."""
    listed = values.get("rope_scaling_layers") if values.index is not None else None
    is_unlisted = isinstance(listed, (list, tuple)) and not is_among(listed, values.index)
    if not is_unlisted and values.label != "unscaled":
        return parameters
    return {key: parameters[key] for key in ("rope_theta", "partial_rotary_factor") if key in parameters}


def hunyuan_vl(values: PartValues, parameters: Parameters) -> Parameters:
    name = "mrope_section" if parameters.get("mrope_section") else "xdrope_section"
    if sections := parameters.get(name):
        raise SpecError(
            f"{name} is {short(sections)}, and HunYuan-VL spreads sections over the full width of the "
            "head: the two features of a pair follow different coordinates, which is no rotation unless all "
            "are equal. For text alone, leave the sections out."
        )
    return parameters


# Models that transformers does not have


def chatglm(values: PartValues, parameters: Parameters) -> Parameters:
    ratio = values.number("rope_ratio", 1.0)
    if divides_positions(values):
        return {"rope_theta": 1e4, "rope_type": "linear", "factor": ratio}
    return {"rope_theta": 1e4 * ratio}


def internlm(values: PartValues, parameters: Parameters) -> Parameters:
    rotary = values.get("rotary")
    if rotary is None:
        return parameters
    if not isinstance(rotary, Mapping) or rotary.get("type") not in ("dynamic", "origin"):
        raise SpecError(f"rotary is {short(rotary)}; its type must be 'dynamic' or 'origin'.")
    base = values.base("rotary.base", 1e4)
    if rotary["type"] == "origin":
        return {"rope_theta": base}
    factor = values.number("rotary.scaling_factor", 1.0)
    return {"rope_theta": base, "rope_type": "dynamic", "factor": factor}


def plamo3(values: PartValues, parameters: Parameters) -> Parameters:
    """Return the parameters of PLaMo 3: YaRN for full attention if rope_scaling_factor is not 1."""
    if any(isinstance(rule, Mapping) for rule in parameters.values()):
        return parameters
    rule: Parameters = {"rope_theta": values.number("rope_theta")}
    if (factor := values.number("rope_scaling_factor", 1.0)) != 1:
        trained = values.integer("initial_context_length")
        rule |= {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": trained}
        rule["truncate"] = False
    return {
        "full_attention": {**rule, **parameters},
        "sliding_attention": {"rope_theta": values.number("rope_local_theta", 1e4)},
    }


def ling3_vl(values: PartValues, parameters: Parameters) -> Parameters:
    """Take the sections from the config around the part, with the default of Ling 3 VL."""
    inner = parameters.get("mrope_section") or values.get("mrope_section")
    outer = values.config_part.above.get("mrope_section")
    if None not in (inner, outer) and inner != outer:
        raise SpecError(f"mrope_section is {short(inner)} in the part, and {short(outer)} outside of it.")
    sections = inner or outer or [12, 10, 10]
    values.enter("mrope_section", sections)
    return {**parameters, "mrope_section": sections}


def needs(values: PartValues, parameters: Parameters, key: str, value: Any, why: str) -> Parameters:
    """Refuse a config with another value under a key than the one whose effect is known."""
    stated = values.number(key, value) if isinstance(value, float) else values.get(key, value)
    if stated != value:
        raise SpecError(f"{key} is {short(stated)}{why}.")
    return parameters


def omnigen(values: PartValues, parameters: Parameters) -> Parameters:
    return {"rope_type": "longrope", **parameters}


def keras_gemma3(values: PartValues, parameters: Parameters) -> Parameters:
    by_type: Parameters = {}
    for label, base, place in (("full_attention", 1e6, "global"), ("sliding_attention", 1e4, "local")):
        factor = values.number(f"{place}_rope_scaling_factor", 1.0)
        by_type[label] = {
            "rope_theta": base,
            **({"rope_type": "linear", "factor": factor} if factor != 1 else {}),
        }
    return by_type


def tensorrt_gemma3(values: PartValues, parameters: Parameters) -> Parameters:
    rule = tensorrt(values, parameters)
    return {
        "full_attention": {**rule, "rope_theta": values.number("rotary_base", 1e4)},
        "sliding_attention": {**rule, "rope_theta": values.number("rope_local_base_freq")},
    }


def tensorrt(values: PartValues, parameters: Parameters) -> Parameters:
    rule = values.get("rotary_scaling")
    if rule is not None and not isinstance(rule, Mapping):
        raise SpecError(f"rotary_scaling is {short(rule)}; give an object, or null.")
    return {**parameters, **(rule or {})}
