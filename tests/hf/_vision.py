"""The rotary classes of vision, audio and protein models, each called as its own attention calls it.

Coordinates differ from each other at nearly every position, so that each map of pairs to axes gives another
result.
"""

import copy
import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
from hf import _random
from hf._walk import Case, Probe, Theirs, config_class, modeling, own_config

LINE = np.array([0, 1, 2, 3, 5, 8, 13, 40, 77, 150])
NEGATIVE = np.array([-7, -1, 0, 1, 4, 30])
GRID = np.stack([np.arange(20) // 5 * 3, np.arange(20) % 5 * 7 + 1], axis=-1)
FINE = (GRID * 0.75 + 0.125).astype(np.float32)
ROWS = np.array([[0, 0], [1, 1], [2, 9], [3, 11], [17, 5], [4, 4]])
VOLUME = np.stack([np.arange(24) // 12 * 2, np.arange(24) // 4 * 5 + 1, np.arange(24) % 4 * 3], axis=-1)

Rotate = Callable[[tuple[np.ndarray, ...]], tuple[np.ndarray, ...]]


def _tensor(x: Any) -> Any:
    import torch

    return torch.from_numpy(np.array(x))


def _at(config: Any, part: str | None) -> Any:
    """Follow a dotted path, as `RoPE.from_config` takes it, through sub-configs."""
    for name in part.split(".") if part else ():
        config = getattr(config, f"{name}_config", None) or getattr(config, name)
    return config


def _head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _theirs(rotate: Rotate, inv_freq: Any, factor: float = 1.0, cos: Any = None, sin: Any = None) -> Theirs:
    arrays = (None if value is None else np.asarray(value) for value in (inv_freq, cos, sin))
    omega, cos, sin = arrays
    return Theirs(rotate, omega, factor, cos, sin)


def _each(apply: Callable[[Any], Any]) -> Rotate:
    """Apply a function of one torch tensor to each array of a tuple of NumPy arrays."""
    return lambda arrays: tuple(apply(_tensor(x)).numpy() for x in arrays)


def _together(apply: Callable[[Any, Any], tuple[Any, Any]]) -> Rotate:
    return lambda arrays: tuple(y.numpy() for y in apply(*map(_tensor, arrays)))


def _packed(apply: Callable[[Any, Any], tuple[Any, Any]]) -> Rotate:
    """Call a function of q and k as (S, heads, D) on one sequence after another, as vision towers do."""
    import torch

    def both(q: Any, k: Any) -> tuple[Any, ...]:
        pairs = [apply(a.transpose(0, 1), b.transpose(0, 1)) for a, b in zip(q, k, strict=True)]
        return tuple(torch.stack([pair[i].transpose(0, 1) for pair in pairs]) for i in (0, 1))

    return _together(both)


def _captured(attention: Any, forward: Callable[[Any], Any]) -> Rotate:
    """Run an attention's own forward with identity projections, and capture q and k after RoPE."""
    import torch
    from transformers import AttentionInterface

    caught: dict[str, Any] = {}

    def catch(module: Any, query: Any, key: Any, value: Any, *rest: Any, **options: Any) -> tuple[Any, None]:
        caught.update(q=query, k=key)
        return query.transpose(1, 2), None

    AttentionInterface.register("catch", catch)
    attention.config._attn_implementation = "catch"
    for name in ("q_proj", "k_proj", "v_proj", "o_proj", "query", "key", "value", "proj"):
        if hasattr(attention, name):
            setattr(attention, name, torch.nn.Identity())

    def rotate(arrays: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        done = []
        for name, x in zip("qk", arrays, strict=True):
            # Pass the heads as the batch: some of these attentions have one head only.
            flat = _tensor(x).reshape(-1, *x.shape[2:])
            with torch.no_grad():
                forward(flat)
            done.append(caught[name][..., : x.shape[2], :].reshape(x.shape).numpy())
        return tuple(done)

    return rotate


# One coordinate


def _line(
    model: str,
    cls: str,
    config: Any,
    part: str | None,
    pos: np.ndarray,
    *,
    apply: Callable[..., Any] | None = None,
) -> Theirs:
    import torch

    module = getattr(modeling(model), cls)(_at(config, part))
    cos, sin = module(torch.zeros(1), _tensor(pos)[None])
    lanes = module.inv_freq.shape[0]
    own = modeling(model).apply_rotary_pos_emb if apply is None else apply
    scale = module.attention_scaling
    rotate = _together(lambda q, k: own(q, k, cos, sin))
    return _theirs(rotate, module.inv_freq, scale, cos[0, :, :lanes], sin[0, :, :lanes])


def _plain(
    model: str,
    name: str,
    root: str,
    parts: Iterable[str | None] = (None,),
    *,
    changes: dict[str, Any] | None = None,
    positions: tuple[np.ndarray, ...] = (LINE,),
    **options: Any,
) -> Case:
    """Return the case of a class that takes (x, position_ids) and feeds `apply_rotary_pos_emb`."""
    cls, root = f"{name}RotaryEmbedding", f"{root}Config"

    def probes() -> Iterator[Probe]:
        config = config_class(model, root)(**(changes or {}))
        for part in parts:
            call = partial(_line, model, cls, config, part, **options)
            yield Probe(config, call, _head_dim(_at(config, part)), positions, part=part)
        for part in parts:
            varied = _other(_at(config_class(model, root)(**(changes or {})), part))
            if varied is not None and getattr(varied, "model_type", ""):
                call = partial(_line, model, cls, varied, None, **options)
                yield Probe(varied, call, _head_dim(varied), positions, shown=False)

    return Case(model, cls, probes)


def _other(config: Any) -> Any:
    """Change a default config to another base and heads of twice the width; None without a base."""
    parameters = getattr(config, "rope_parameters", None)
    if parameters is None or "rope_theta" not in parameters:
        return None
    config.rope_parameters = {**parameters, "rope_theta": parameters["rope_theta"] * 1.75}
    if "head_dim" in config.to_dict() and config.head_dim:
        config.head_dim = 2 * config.head_dim
    else:
        config.num_attention_heads = config.num_attention_heads // 2
    return config


# Two and three coordinates, like Qwen2-VL's ViT


def _ordered(cos: Any, order: str, lanes: int) -> Any:
    """Undo a model's repetition of cos and sin to the full width."""
    if order == "half":
        return cos[..., :lanes]
    if order == "interleaved":
        return cos[..., ::2]
    n = lanes // 2  # blocks: keep the first half of each block
    return np.concatenate([cos[..., :n], cos[..., 2 * n : 3 * n]], axis=-1)


def _tower(
    model: str,
    cls: str,
    config: Any,
    part: str | None,
    pos: np.ndarray,
    *,
    lanes_of: Callable[[np.ndarray], np.ndarray],
    order: str = "half",
    apply: str = "apply_rotary_pos_emb_vision",
    packed: bool = True,
    unsqueeze: int | None = None,
) -> Theirs:
    import torch

    owner = modeling(model)
    module = getattr(owner, cls)(_at(config, part))
    cos, sin = module(torch.zeros(1), _tensor(pos))
    options = {} if unsqueeze is None else {"unsqueeze_dim": unsqueeze}
    own = partial(getattr(owner, apply), cos=cos, sin=sin, **options)
    omega = lanes_of(module.inv_freq.numpy())
    flat = [_ordered(value.reshape(pos.shape[0], -1).numpy(), order, omega.size) for value in (cos, sin)]
    return _theirs((_packed if packed else _together)(own), omega, module.attention_scaling, *flat)


def _twice(inv_freq: np.ndarray) -> np.ndarray:
    return np.tile(inv_freq, 2)


def _pairwise(inv_freq: np.ndarray) -> np.ndarray:
    return np.repeat(inv_freq, 2)


def _thrice(inv_freq: np.ndarray) -> np.ndarray:
    return np.tile(inv_freq, 3)


def _same(inv_freq: np.ndarray) -> np.ndarray:
    return inv_freq


def _vision(
    model: str,
    name: str,
    root: str | None = None,
    part: str | None = "vision",
    *,
    positions: tuple[np.ndarray, ...] = (GRID,),
    head_dim: Callable[[Any], int] = _head_dim,
    **options: Any,
) -> Case:
    """Return the case of a vision tower: its config inside the whole config, alone, and alone but changed."""
    cls = f"{name}RotaryEmbedding"
    options = {"lanes_of": _twice, **options}

    def probes() -> Iterator[Probe]:
        alone = own_config(model, cls)
        other = _other(own_config(model, cls))
        found = [(alone, None), (other, None)]
        if root is not None:
            found.insert(0, (config_class(model, f"{root}Config")(), part))
        for config, path in found:
            call = partial(_tower, model, cls, config, path, **options)
            shown = config is not other
            yield Probe(config, call, head_dim(_at(config, path)), positions, part=path, shown=shown)

    return Case(model, cls, probes)


def _gemma4(config: Any, pos: np.ndarray) -> Theirs:
    import torch

    owner = modeling("gemma4")
    module = owner.Gemma4VisionRotaryEmbedding(config)
    ids = _tensor(pos)[None]
    cos, sin = module(torch.zeros(1), ids)

    def rotate(x: Any) -> Any:
        rotated = owner.apply_multidimensional_rope(
            x.transpose(1, 2), cos, sin, ids.expand(x.shape[0], -1, -1)
        )
        return rotated.transpose(1, 2)

    omega = _twice(module.inv_freq.numpy())
    flat = [_ordered(value[0].numpy(), "blocks", omega.size) for value in (cos, sin)]
    return _theirs(_each(rotate), omega, module.attention_scaling, *flat)


def _gemma4_probes() -> Iterator[Probe]:
    own = partial(own_config, "gemma4", "Gemma4VisionRotaryEmbedding")
    for config, shown in ((own(), True), (_other(own()), False)):
        yield Probe(config, partial(_gemma4, config), _head_dim(config), (GRID,), shown=shown)
    whole = config_class("gemma4", "Gemma4Config")(vision_config=own())
    yield Probe(
        whole, partial(_gemma4, whole.vision_config), _head_dim(whole.vision_config), (GRID,), part="vision"
    )


def _llama4(config: Any, pos: np.ndarray) -> Theirs:
    """Select rows of the module's table: its grid counts from 1, and (0, 0) is the class token."""
    import torch

    owner = modeling("llama4")
    side = config.image_size // config.patch_size
    rows = np.where(pos.any(axis=-1), (pos[:, 1] - 1) * side + pos[:, 0] - 1, side * side)
    whole = owner.Llama4VisionRotaryEmbedding(config)(torch.zeros(1))
    table = whole[rows]

    def both(q: Any, k: Any) -> tuple[Any, ...]:
        # The function takes (B, S, H, D).
        turned = owner.vision_apply_rotary_emb(q.transpose(1, 2), k.transpose(1, 2), freqs_ci=table)
        return tuple(x.transpose(1, 2) for x in turned)

    # Row 0 is position (1, 1): its angles are the frequencies.
    return _theirs(_together(both), whole[0, 0].angle(), 1.0, table[:, 0].real, table[:, 0].imag)


def _llama4_probes() -> Iterator[Probe]:
    pos = np.stack([np.arange(20) * 7 % 32 + 1, np.arange(20) + 3], axis=-1)
    pos[-1] = 0
    kind = config_class("llama4", "Llama4VisionConfig")
    other = kind(num_attention_heads=8, rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    whole = config_class("llama4", "Llama4Config")()
    found = [(whole, whole.vision_config, "vision"), (kind(), None, None), (other, None, None)]
    for config, inner, part in found:
        of = config if inner is None else inner
        yield Probe(config, partial(_llama4, of), of.hidden_size // of.num_attention_heads, (pos,), part=part)


# SAM: the embedding and the attentions that use it


def _memory_width(config: Any) -> int:
    whole = config.memory_attention_hidden_size // config.memory_attention_downsample_rate
    return int(whole // config.memory_attention_num_attention_heads)


def _sam(model: str, name: str) -> Case:
    cls, root = f"{name}VisionRotaryEmbedding", f"{name}Config"
    options = {"lanes_of": _twice, "order": "interleaved", "packed": False}
    apply = "apply_rotary_pos_emb_2d_self_attn" if model == "edgetam_video" else "apply_rotary_pos_emb_2d"

    def probes() -> Iterator[Probe]:
        kind = config_class(model, root)
        other = kind(
            memory_attention_hidden_size=384,
            memory_attention_num_attention_heads=2,
            memory_attention_downsample_rate=3,
            rope_parameters={"rope_type": "axial", "rope_theta": 700.0},
        )
        for config in (kind(), other):
            call = partial(_tower, model, cls, config, None, apply=apply, **options)
            yield Probe(config, call, _memory_width(config), (GRID, FINE))

    return Case(model, cls, probes)


def _memory_attention(
    model: str, cls: str, table: str, forward: Callable[..., Any], config: Any, pos: np.ndarray
) -> Theirs:
    import torch

    owner = modeling(model)
    rotary = getattr(owner, table)(config)
    turns = rotary(torch.zeros(1), _tensor(pos))
    extra = (64,) if "kv_in_dim" in getattr(owner, cls).__init__.__code__.co_varnames else ()
    attention = getattr(owner, cls)(config, *extra)
    attention.num_attention_heads = 1  # `_captured` passes the heads as the batch
    rotate = _captured(attention, partial(forward, attention, turns))
    return _theirs(rotate, _twice(rotary.inv_freq.numpy()), rotary.attention_scaling)


def _self_attention(attention: Any, turns: Any, x: Any) -> None:
    attention(x[:, None], x[:, None], x[:, None], position_embeddings=turns)


def _with_pointers(attention: Any, turns: Any, x: Any, **options: Any) -> None:
    """Pass the keys of two memories, then three object pointers, which have no position."""
    import torch

    keys = torch.cat([x, x, x[:, :3] + 1], dim=1)[:, None]
    attention(x[:, None], keys, keys, position_embeddings=turns, num_k_exclude_rope=3, **options)


def _sam2_cross(attention: Any, turns: Any, x: Any) -> None:
    attention.rope_k_repeat = True
    _with_pointers(attention, turns, x)


def _edgetam_cross(attention: Any, turns: Any, x: Any) -> None:
    _with_pointers(attention, turns, x, position_embeddings_k=turns, rope_k_repeat=2)


def _sam_attention(model: str, name: str, kind: str, *forwards: Callable[..., Any]) -> Case:
    cls, root, table = f"{name}RoPE{kind}", f"{name}Config", f"{name}VisionRotaryEmbedding"

    def probes() -> Iterator[Probe]:
        config = config_class(model, root)()
        for forward in forwards:
            call = partial(_memory_attention, model, cls, table, forward, config)
            yield Probe(config, call, _memory_width(config), (GRID,))

    return Case(model, cls, probes, status=f"an attention layer, which takes its tables from `{table}`")


def _sam3_attention(config: Any, pos: np.ndarray) -> Theirs:
    import torch

    owner = modeling("sam3")
    rotary = owner.Sam3ViTRotaryEmbedding(config)
    turns = rotary(torch.zeros(1), _tensor(pos))
    attention = owner.Sam3ViTRoPEAttention(config)
    attention.num_attention_heads = 1  # `_captured` passes the heads as the batch
    rotate = _captured(attention, lambda x: attention(x[:, None], position_embeddings=turns))
    return _theirs(rotate, _twice(rotary.inv_freq.numpy()), rotary.attention_scaling)


def _sam3_attention_probes() -> Iterator[Probe]:
    config = config_class("sam3", "Sam3ViTConfig")()
    yield Probe(config, partial(_sam3_attention, config), _head_dim(config), (GRID, FINE))


# DINOv3: normalised coordinates


def _dino(model: str, cls: str, config: Any, pos: np.ndarray) -> Theirs:
    import torch

    owner = modeling(model)
    module = getattr(owner, cls)(config).eval()
    with mock.patch.object(owner, "get_patches_center_coordinates", return_value=_tensor(pos)):
        cos, sin = module(torch.zeros(1, 3, 64, 64))
    omega = _twice(module.inv_freq.numpy()) * 2 * math.pi

    def both(q: Any, k: Any) -> tuple[Any, ...]:
        # Put two prefix tokens before the patches; they must stay unrotated.
        pairs = [torch.cat([x[..., :2, :] + 1, x], dim=-2) for x in (q, k)]
        turned = owner.apply_rotary_pos_emb(*pairs, cos, sin)
        assert all(
            torch.equal(new[..., :2, :], old[..., :2, :]) for new, old in zip(turned, pairs, strict=True)
        )
        return tuple(x[..., 2:, :] for x in turned)

    return _theirs(_together(both), omega, 1.0, cos[:, : omega.size], sin[:, : omega.size])


def _dino_case(model: str, cls: str, root: str, theta: dict[str, Any]) -> Case:
    def probes() -> Iterator[Probe]:
        import torch

        centres = (
            modeling(model).get_patches_center_coordinates(3, 5, dtype=torch.float32, device="cpu").numpy()
        )
        outside = (np.random.default_rng(5).random((11, 2)) * 3 - 1.5).astype(np.float32)  # shifted, rescaled
        kind = config_class(model, root)
        for config in (kind(), kind(hidden_size=320, num_attention_heads=5, **theta)):
            call = partial(_dino, model, cls, config)
            yield Probe(config, call, config.hidden_size // config.num_attention_heads, (centres, outside))

    return Case(model, cls, probes)


# Others with two coordinates


def _loftr(config: Any, pos: np.ndarray) -> Theirs:
    import torch

    owner = modeling("efficientloftr")
    module = owner.EfficientLoFTRRotaryEmbedding(config)
    side, step = config.q_aggregation_kernel_size, config.q_aggregation_stride
    height, width = (int(n) for n in pos[-1])
    cos, sin = module(torch.zeros(1, 1, (height - 1) * step + side, (width - 1) * step + side))
    cos, sin = (value.reshape(1, pos.shape[0], -1) for value in (cos, sin))

    def both(q: Any, k: Any) -> tuple[Any, ...]:
        turned = owner.apply_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), cos, sin, unsqueeze_dim=2)
        return tuple(x.transpose(1, 2) for x in turned)

    return _theirs(_together(both), _pairwise(module.inv_freq.numpy()), 1.0, cos[0, :, ::2], sin[0, :, ::2])


def _loftr_probes() -> Iterator[Probe]:
    kind = config_class("efficientloftr", "EfficientLoFTRConfig")
    grid = np.stack([np.repeat(np.arange(3), 6), np.tile(np.arange(6), 3)], axis=-1) + 1
    for config in (kind(), kind(rope_parameters={**kind().rope_parameters, "rope_theta": 300.0})):
        yield Probe(config, partial(_loftr, config), config.hidden_size, (grid,))


def _neomme(config: Any, layer_type: str, pos: np.ndarray) -> Theirs:
    import torch

    owner = modeling("neomme")
    module = owner.NeoMMERotaryEmbedding(config)
    cos, sin = module(torch.zeros(1), _tensor(pos.T)[:, None], layer_type)
    omega = getattr(module, f"{layer_type}_inv_freq").numpy()
    rotate = _together(partial(owner.apply_rotary_pos_emb, cos=cos, sin=sin))
    return _theirs(rotate, omega, 1.0, cos[0, :, : omega.size], sin[0, :, : omega.size])


def _neomme_probes() -> Iterator[Probe]:
    kind = config_class("neomme", "NeoMMEConfig")
    other = {
        "full_attention": {"rope_type": "default", "rope_theta": 3e4, "partial_rotary_factor": 0.5},
        "sliding_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0},
    }
    for config in (kind(), kind(head_dim=32, rope_parameters=other)):
        for layer_type in ("full_attention", "sliding_attention"):
            call = partial(_neomme, config, layer_type)
            yield Probe(config, call, config.head_dim, (ROWS, GRID), layer_type=layer_type)


# Proteins


def _atoms(config: Any, pos: np.ndarray) -> Theirs:
    import torch

    owner = modeling("esmfold2")
    module = owner.EsmFold2RotaryEmbedding(config)
    where, which = _tensor(pos[:, :3])[None].float(), _tensor(pos[:, 3])[None]
    cos, sin = module(where, which, torch.float32)
    lanes = config.head_dim // 2
    rotate = _together(partial(owner.apply_rotary_pos_emb, cos=cos, sin=sin))
    one = module(torch.ones(1, 1, 3), torch.ones(1, 1), torch.float64)  # at 1 the angles are the frequencies
    omega = torch.atan2(one[1], one[0])[0, 0, :lanes]
    return _theirs(rotate, omega, 1.0, cos[0, :, :lanes], sin[0, :, :lanes])


def _atom_probes() -> Iterator[Probe]:
    rng = np.random.default_rng(2)
    pos = np.concatenate([rng.standard_normal((12, 3)) * 4, np.arange(12)[:, None] * 3], axis=-1)
    kinds = partial(config_class, "esmfold2")
    other = {
        "num_spatial_rope_pairs_per_axis": 3,
        "num_uid_rope_pairs": 5,
        "spatial_rope_base_frequency": 7.0,
    }
    for config in (kinds("EsmFold2Config")(), kinds("EsmFold2Config")(atom_encoder=_atom_encoder(other))):
        for part in ("atom_encoder", "structure_head.diffusion_module.atom_encoder"):
            inner = _at(config, part)
            call = partial(_atoms, inner)
            yield Probe(config, call, inner.head_dim, (pos.astype(np.float32),), part=part)


def _atom_encoder(changes: dict[str, Any]) -> dict[str, Any]:
    return {**config_class("esmfold2", "EsmFold2Config")().atom_encoder.to_dict(), **changes}


def _unrotated(config: Any, part: str | None = None) -> Probe:
    """Return the probe of a config with another position embedding: our rope must be the identity."""
    width = _head_dim(_at(config, part))
    return Probe(
        config, lambda pos: Theirs(lambda qk: qk, None), width, (LINE,), part=part, frequencies=False
    )


def _esm_probes() -> Iterator[Probe]:
    kind = config_class("esm", "EsmConfig")
    other = {"rope_theta": 300.0, "hidden_size": 320, "num_attention_heads": 5}
    for changes in ({}, other):
        config = kind(position_embedding_type="rotary", vocab_size=33, pad_token_id=1, **changes)
        call = partial(_line, "esm", "EsmRotaryEmbedding", config, None)
        yield Probe(config, call, _head_dim(config), (LINE,))
    yield _unrotated(kind(vocab_size=33, pad_token_id=1))


# Sound


def _clvp(config: Any, pos: np.ndarray) -> Theirs:
    import torch

    owner = modeling("clvp")
    module = owner.ClvpRotaryPositionalEmbedding(config)
    angles = module(torch.zeros(1, int(pos.max()) + 1, 1)).squeeze(0)
    width, ids = angles.shape[-1], _tensor(pos)[None]

    def both(q: Any, k: Any) -> tuple[Any, ...]:
        done = []
        for x in (q, k):
            first, rest = x[..., :width], x[..., width:]
            turned = owner.apply_rotary_pos_emb(first, first, first, angles.cos(), angles.sin(), ids)
            assert torch.equal(turned[0], turned[2])  # v is rotated too
            done.append(torch.cat([turned[0], rest], dim=-1))
        return tuple(done)

    lanes = angles[pos, : width // 2]
    return _theirs(_together(both), module.inv_freq, 1.0, lanes.cos(), lanes.sin())


def _clvp_probes() -> Iterator[Probe]:
    whole = config_class("clvp", "ClvpConfig")()
    for part in ("text", "speech"):
        inner = _at(whole, part)
        yield Probe(whole, partial(_clvp, inner), _head_dim(inner), (LINE,), part=part)
    kind = config_class("clvp", "ClvpEncoderConfig")
    other = kind(hidden_size=512, num_attention_heads=4, projection_dim=640)
    yield Probe(other, partial(_clvp, other), 128, (LINE,))
    yield _unrotated(kind(use_rotary_embedding=False))


def _conformer(model: str, cls: str, attention: str, config: Any, pos: np.ndarray) -> Theirs:
    import torch

    owner = modeling(model)
    module = getattr(owner, cls)(config)
    table = module(torch.zeros(1, int(pos.max()) + 1, 1))[:, pos]
    own = getattr(owner, attention)._apply_rotary_embedding

    def rotate(x: Any) -> Any:
        batch, heads, length, width = x.shape
        self = SimpleNamespace(num_heads=heads, head_size=width)
        flat = x.transpose(1, 2).reshape(batch, length, heads * width)
        return own(self, flat, table).reshape(batch, length, heads, width).transpose(1, 2)

    lanes = module.inv_freq.shape[0]
    return _theirs(_each(rotate), module.inv_freq, 1.0, *table[:, :, 0, 0, :lanes])


def _conformer_case(model: str, name: str, root: str, heads: str) -> Case:
    cls, attention = f"{name}RotaryPositionalEmbedding", f"{name}SelfAttention"

    def probes() -> Iterator[Probe]:
        kind = config_class(model, f"{root}Config")
        other = {"rotary_embedding_base": 300, "hidden_size": 320, heads: 5}
        for changes in ({}, other):
            config = kind(position_embeddings_type="rotary", **changes)
            call = partial(_conformer, model, cls, attention, config)
            yield Probe(config, call, config.hidden_size // getattr(config, heads), (LINE,))
        default = kind()
        width = default.hidden_size // getattr(default, heads)
        yield Probe(default, lambda pos: Theirs(lambda qk: qk, None), width, (LINE,), frequencies=False)

    return Case(model, cls, probes)


def _first_head(q: Any, k: Any, cos: Any, sin: Any) -> tuple[Any, ...]:
    """Pass every head as head 0: Qwen2.5-Omni's DiT rotates only that head."""
    owner = modeling("qwen2_5_omni")
    done = []
    for x in (q, k):
        one = owner.deinterleave_head_dim(x.reshape(-1, 1, *x.shape[2:]))
        done.append(owner.apply_rotary_pos_emb(one, one, cos, sin)[0].reshape(x.shape))
    return tuple(done)


def _across_heads(model: str, q: Any, k: Any, cos: Any, sin: Any) -> tuple[Any, ...]:
    """Pass tokens as heads: XCodec2 and NeuCodec rotate by the index of the head, not of the token."""
    turned = modeling(model).apply_rotary_pos_emb(
        q.transpose(1, 2), k.transpose(1, 2), cos, sin, unsqueeze_dim=2
    )
    return tuple(x.transpose(1, 2) for x in turned)


def _flamingo(config: Any, known: dict[bytes, np.ndarray], pos: np.ndarray) -> Theirs:
    owner = modeling("musicflamingo")
    module = owner.MusicFlamingoRotaryEmbedding(config)
    seconds = _tensor(known[pos.tobytes()])[None]
    cos, sin = module(seconds, seq_len=pos.shape[0])
    rotate = _each(lambda x: owner.apply_rotary_time_emb(x, cos, sin))
    return _theirs(rotate, _twice(module.inv_freq.numpy()), 1.0, cos[0, :, ::2], sin[0, :, ::2])


def _windows(config: Any) -> dict[bytes, np.ndarray]:
    """Return the seconds of the frames of three windows; the keys are the bytes of our coordinates."""
    turn, longest, known = 2 * math.pi, config.max_position_embeddings, {}
    for start in (0.0, 2.4, 7.2):
        frames = np.arange(20)
        seconds = (start + frames * 0.04).astype(np.float32)
        window = np.round(start / (config.audio_frame_step * 4 * frames.size))
        angle = -turn * seconds.astype(np.float64) / longest
        known[np.stack([window * angle, turn * frames * angle], axis=-1).tobytes()] = seconds
    return known


def _flamingo_probe(config: Any) -> Probe:
    known = _windows(config)
    positions = tuple(np.frombuffer(data).reshape(-1, 2) for data in known)
    return Probe(config, partial(_flamingo, config, known), config.head_dim, positions)


def _flamingo_probes() -> Iterator[Probe]:
    kind = config_class("musicflamingo", "MusicFlamingoConfig")
    other = {"rope_type": "default", "rope_theta": 600.0, "partial_rotary_factor": 0.1}
    yield from map(_flamingo_probe, (kind(), kind(rope_parameters=other)))


# Not rotations


def _norms_change(rotate: Callable[[np.ndarray], np.ndarray], width: int) -> None:
    x = np.random.default_rng(0).standard_normal((1, 1, 6, width)).astype(np.float32)
    before, after = (np.linalg.norm(value, axis=-1) for value in (x, rotate(x)))
    assert np.abs(after / before - 1).max() > 0.01


def _vjepa2_refused() -> Iterator[tuple[Any, str | None, str]]:
    config = config_class("vjepa2", "VJEPA2Config")()
    owner = modeling("vjepa2")
    attention = owner.VJEPA2RopeAttention(config, config.hidden_size, config.num_attention_heads)
    ids = tuple(_tensor(axis) for axis in VOLUME[4:10].T)
    _norms_change(
        lambda x: attention.apply_rotary_embeddings(_tensor(x), ids).numpy(), attention.attention_head_size
    )
    yield config, None, "no rotation"


def _hunyuan_refused() -> Iterator[tuple[Any, str | None, str]]:
    import torch

    owner, kind = modeling("hunyuan_vl"), partial(config_class, "hunyuan_vl")
    sections = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [16, 16, 16, 16]}
    text = {"head_dim": 128, "rope_parameters": sections}
    config = kind("HunYuanVLTextConfig")(**text)
    ids = np.stack([*VOLUME[4:10].T, np.arange(6) * 2])
    cos, sin = owner.HunYuanVLRotaryEmbedding(config)(torch.zeros(1), _tensor(ids)[:, None])
    _norms_change(lambda x: owner.apply_rotary_pos_emb(_tensor(x), _tensor(x), cos, sin)[0].numpy(), 128)
    yield config, None, "no rotation"
    yield kind("HunYuanVLConfig")(text_config=text), "text", "no rotation"


# The list


def _each_of(make: Callable[..., Case], names: str) -> list[Case]:
    """Return the cases of model:class:config, class and config without their common suffixes."""
    return [make(*name.split(":")) for name in names.split()]


_TOWERS = [
    *_each_of(
        _vision,
        "cohere_compass:CohereCompassVision:CohereCompass dots3_note:Dots3NoteVision:Dots3Note"
        " ernie4_5_vl_moe:Ernie4_5_VLMoeVision:Ernie4_5_VLMoe exaone4_5:Exaone4_5_Vision:Exaone4_5_"
        " glm4v:Glm4vVision:Glm4v glm4v_moe:Glm4vMoeVision:Glm4vMoe glm5_next:Glm5NextVision:Glm5Next"
        " glm_ocr:GlmOcrVision:GlmOcr lfm3_vl:Lfm3VlVision:Lfm3Vl"
        " muse_glimmer:MuseGlimmerVision:MuseGlimmer muse_spark:MuseSparkVision:MuseSpark"
        " paddleocr_vl:PaddleOCRVision:PaddleOCRVL qwen2_5_vl:Qwen2_5_VLVision:Qwen2_5_VL"
        " qwen3_5:Qwen3_5Vision:Qwen3_5 qwen3_5_moe:Qwen3_5MoeVision:Qwen3_5Moe"
        " qwen3_vl:Qwen3VLVision:Qwen3VL qwen3_vl_moe:Qwen3VLMoeVision:Qwen3VLMoe"
        " qwen4_exp:Qwen4ExpVision:Qwen4Exp video_llama_3:VideoLlama3Vision:VideoLlama3"
        " step3p7:Step3p7Vision:Step3p7",
    ),
    _vision("mlcd", "MLCD"),
    _vision("qwen2_5_omni", "Qwen2_5OmniVision", "Qwen2_5Omni", "thinker.vision"),
    _vision(
        "qwen2_vl",
        "Qwen2VLVision",
        "Qwen2VL",
        head_dim=lambda config: getattr(config, "head_dim", None) or config.embed_dim // config.num_heads,
    ),
    _vision("qwen3_omni_moe", "Qwen3OmniMoeVision", "Qwen3OmniMoe", "thinker.vision"),
    _vision("inkling2", "Inkling2Vision", "Inkling2", order="interleaved"),
    _vision("kimi_k25", "Kimi_K25Vision", "Kimi_K25", lanes_of=_pairwise),
    _vision("minimax_m3_vl", "MiniMaxM3VLVision", "MiniMaxM3VL", lanes_of=_thrice, positions=(VOLUME,)),
    _vision(
        "pixtral", "PixtralVision", lanes_of=_same, apply="apply_rotary_pos_emb", packed=False, unsqueeze=0
    ),
    _vision(
        "sam3",
        "Sam3ViT",
        "Sam3Vision",
        "backbone",
        order="interleaved",
        apply="apply_rotary_pos_emb_2d",
        packed=False,
        positions=(GRID, FINE),
    ),
    Case("gemma4", "Gemma4VisionRotaryEmbedding", _gemma4_probes),
    Case("llama4", "Llama4VisionRotaryEmbedding", _llama4_probes),
    _sam("sam2_video", "Sam2Video"),
    _sam("sam3_tracker_video", "Sam3TrackerVideo"),
    _sam("edgetam_video", "EdgeTamVideo"),
    _sam_attention("sam2_video", "Sam2Video", "Attention", _self_attention, _sam2_cross),
    _sam_attention("sam3_tracker_video", "Sam3TrackerVideo", "Attention", _self_attention, _sam2_cross),
    _sam_attention("edgetam_video", "EdgeTamVideo", "SelfAttention", _self_attention),
    _sam_attention("edgetam_video", "EdgeTamVideo", "CrossAttention", _edgetam_cross),
    Case(
        "sam3",
        "Sam3ViTRoPEAttention",
        _sam3_attention_probes,
        status="an attention layer, which takes its tables from `Sam3ViTRotaryEmbedding`",
    ),
    _dino_case("dinov3_vit", "DINOv3ViTRopePositionEmbedding", "DINOv3ViTConfig", {"rope_theta": 30.0}),
    _dino_case("sapiens2", "Sapiens2RopePositionEmbedding", "Sapiens2Config", {"rope_theta": 30.0}),
    _dino_case(
        "eomt_dinov3",
        "EomtDinov3RotaryEmbedding",
        "EomtDinov3Config",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 30.0}},
    ),
    Case("efficientloftr", "EfficientLoFTRRotaryEmbedding", _loftr_probes),
    Case("neomme", "NeoMMERotaryEmbedding", _neomme_probes),
    Case(
        "hunyuan_vl",
        "HunYuanVLRotaryEmbedding",
        status="no rotation, as the two features of a pair have different coordinates, and norms change",
        refused=_hunyuan_refused,
    ),
    Case(
        "vjepa2",
        "VJEPA2RopeAttention",
        status="no rotation, as the two features of a pair have different frequencies, and norms change",
        refused=_vjepa2_refused,
    ),
    _plain("deepseek_ocr2", "DeepseekOcr2Vision", "DeepseekOcr2", ["vision.encoder"]),
]

_SOUND = [
    _plain("csm", "Csm", "Csm", [None, "depth_decoder"]),
    _plain("dia", "Dia", "Dia", ["encoder", "decoder"]),
    *_each_of(
        _plain,
        "gradium_phonon_tts:GradiumPhononTTS:GradiumPhononTTS higgs_audio_v2:HiggsAudioV2:HiggsAudioV2"
        " kyutai_speech_to_text:KyutaiSpeechToText:KyutaiSpeechToText moshi:Moshi:Moshi"
        " pocket_tts:PocketTTS:PocketTTS mimi:Mimi:Mimi moonshine:Moonshine:Moonshine"
        " moonshine_streaming:MoonshineStreaming:MoonshineStreaming",
    ),
    _plain("qwen3_omni_moe", "Qwen3OmniMoe", "Qwen3OmniMoe", ["code2wav", "talker.code_predictor"]),
    _plain("timesfm2_5", "TimesFm2_5", "TimesFm2_5", positions=(LINE, NEGATIVE)),
    _plain("dots3_note", "Dots3NoteAudio", "Dots3Note", ["audio"]),
    _plain("glmasr", "GlmAsr", "GlmAsr", ["audio"]),
    _plain("lasr", "LasrEncoder", "LasrCTC", ["encoder"]),
    _plain(
        "nemotron3_5_transcribe",
        "Nemotron3_5Transcribe",
        "Nemotron3_5Transcribe",
        ["audio.asr", "word_timestamp"],
    ),
    _plain("nemotron3_diarization", "Nemotron3Diarization", "Nemotron3Diarization", ["audio"]),
    _plain("neucodec", "NeuCodec", "NeuCodec", apply=partial(_across_heads, "neucodec")),
    _plain("pe_audio", "PeAudioEncoder", "PeAudio", ["audio"]),
    _plain("pe_audio_video", "PeAudioVideoEncoder", "PeAudioVideo", ["audio_video"]),
    _plain("pe_video", "PeVideoEncoder", "PeVideo", ["video"]),
    _plain("pocket_tts_audio_tokenizer", "PocketTTSAudioTokenizer", "PocketTTSAudioTokenizer"),
    _plain("qwen2_5_omni", "Qwen2_5OmniDiT", "Qwen2_5Omni", ["token2wav.dit"], apply=_first_head),
    _plain("voxtral_realtime", "VoxtralRealtime", "VoxtralRealtime", ["audio", "text"]),
    _plain("xcodec2", "Xcodec2", "Xcodec2", apply=partial(_across_heads, "xcodec2")),
    Case("clvp", "ClvpRotaryPositionalEmbedding", _clvp_probes),
    Case("musicflamingo", "MusicFlamingoRotaryEmbedding", _flamingo_probes),
    _conformer_case("wav2vec2_bert", "Wav2Vec2Bert", "Wav2Vec2Bert", "num_attention_heads"),
    _conformer_case("wav2vec2_conformer", "Wav2Vec2Conformer", "Wav2Vec2Conformer", "num_attention_heads"),
    _conformer_case("seamless_m4t", "SeamlessM4TConformer", "SeamlessM4T", "speech_encoder_attention_heads"),
]

_LIFE = [
    Case("esm", "EsmRotaryEmbedding", _esm_probes),
    _plain("esmc", "Esmc", "Esmc"),
    Case("esmfold2", "EsmFold2RotaryEmbedding", _atom_probes),
    _plain("evolla", "EvollaSaProt", "Evolla", ["protein_encoder"]),
]

CASES: list[Case] = [*_TOWERS, *_SOUND, *_LIFE]


# Random configs

Random = np.random.Generator
Given = dict[str, Any]


@dataclass(frozen=True)
class Drawn:
    """A class; `make` draws the fields of a config, and `probe` returns the probe of the config."""

    model: str
    config: str
    make: Callable[[Random], Given]
    probe: Callable[[Any], Probe]

    @property
    def name(self) -> str:
        return f"{self.model}, {self.config}"

    def probes(self, seed: int) -> Iterator[tuple[str, str, Probe]]:
        """Yield the config as text, a name, and the probe, for the dict, the object, and the saved JSON."""
        owner = config_class(self.model, self.config)
        given = self.make(np.random.default_rng([seed, *self.name.encode()]))
        made = owner(**copy.deepcopy(given))
        raw, probe = {"model_type": owner.model_type, **given}, self.probe(made)
        for name, config in (("dict", raw), ("config", made), ("saved", json.loads(made.to_json_string()))):
            yield str(raw), name, replace(probe, config=config)


def _drawn_theta(rng: Random, kind: str = "axial") -> Given:
    theta = _random.base(rng)
    return (
        {"rope_parameters": {"rope_type": kind, "rope_theta": theta}}
        if rng.random() < 0.5
        else {"rope_theta": theta}
    )


def _drawn_heads(rng: Random, step: int = 4, most: int = 128) -> tuple[int, int]:
    return int(rng.integers(1, 9)), step * int(rng.integers(1, most // step + 1))


def _drawn_tower(
    rng: Random, heads: str = "num_heads", hidden: str = "hidden_size", kind: str = "axial", step: int = 4
) -> Given:
    number, width = _drawn_heads(rng, step)
    return {heads: number, hidden: number * width, **_drawn_theta(rng, kind)}


def _drawn_memory(rng: Random) -> Given:
    heads, width = _drawn_heads(rng)
    rate = int(rng.integers(1, 4))
    return {
        "memory_attention_hidden_size": heads * width * rate,
        "memory_attention_num_attention_heads": heads,
        "memory_attention_downsample_rate": rate,
        "rope_parameters": {"rope_type": "axial", "rope_theta": _random.base(rng)},
    }


def _drawn_dino(rng: Random) -> Given:
    heads = int(rng.integers(1, 9))
    width = 4 * 2 ** int(rng.integers(1, 6))  # unless 4/width is exact, their arange has one number too many
    return {
        "hidden_size": heads * width,
        "num_attention_heads": heads,
        "rope_theta": float(_random.base(rng)),
    }


def _drawn_clvp(rng: Random) -> Given:
    heads, width = int(rng.integers(1, 9)), 2 * int(rng.integers(32, 64))
    share = 4 * heads * int(rng.integers(1, 1 + width // 2))
    return {"num_attention_heads": heads, "hidden_size": heads * width, "projection_dim": share}


def _drawn_conformer(rng: Random) -> Given:
    heads, width = _drawn_heads(rng, 2)
    made = {"position_embeddings_type": "rotary", "rotary_embedding_base": int(_random.base(rng))}
    return {"num_attention_heads": heads, "hidden_size": heads * width, **made}


def _drawn_flamingo(rng: Random) -> Given:
    parameters = {
        "rope_type": "default",
        "rope_theta": float(rng.integers(500, 5000)),
        "partial_rotary_factor": _random.real(rng, 0.02, 0.5),
    }
    audio = {"model_type": "audioflamingo3_encoder", "hidden_size": 40 * int(rng.integers(1, 20))}
    return {"audio_config": audio, "rope_parameters": parameters}


def _drawn_share(rng: Random) -> Given:
    heads, width = _drawn_heads(rng, 8)
    parameters = {"rope_type": "default", "rope_theta": _random.base(rng)}
    share = float(rng.choice([0.25, 0.5, 0.75, 1.0]))
    made = {"num_attention_heads": heads, "num_key_value_heads": heads, "hidden_size": heads * width}
    return {**made, "rope_parameters": {**parameters, "partial_rotary_factor": share}}


def _drawn_whole(rng: Random) -> Given:
    heads, width = _drawn_heads(rng, 2)
    made = {"num_attention_heads": heads, "num_key_value_heads": heads, "hidden_size": 8 * heads}
    return {**made, "head_dim": width, **_drawn_theta(rng, "default")}


def _probe_of_tower(config: Any, *, model: str, cls: str, positions: Any = (GRID,), **options: Any) -> Probe:
    width = options.pop("head_dim", _head_dim)(config)
    options = {"lanes_of": _twice, **options}
    return Probe(config, partial(_tower, model, cls, config, None, **options), width, positions)


def _drawn(model: str, name: str, config: str, make: Callable[[Random], Given], **options: Any) -> Drawn:
    cls, config = f"{name}RotaryEmbedding", f"{config}Config"
    return Drawn(model, config, make, partial(_probe_of_tower, model=model, cls=cls, **options))


def _drawn_line(model: str, name: str, config: str, make: Callable[[Random], Given], **options: Any) -> Drawn:
    cls, config = f"{name}RotaryEmbedding", f"{config}Config"

    def probe(made: Any) -> Probe:
        return Probe(made, partial(_line, model, cls, made, None, **options), _head_dim(made), (LINE,))

    return Drawn(model, config, make, probe)


_BY_HEADS = partial(_drawn_tower, heads="num_attention_heads")
_SAM = {"order": "interleaved", "apply": "apply_rotary_pos_emb_2d", "packed": False}

# Random configs of vision, audio and protein models, like `_random.FORMS`.
FORMS: tuple[Drawn, ...] = (
    _drawn(
        "qwen2_vl",
        "Qwen2VLVision",
        "Qwen2VLVision",
        partial(_drawn_tower, hidden="embed_dim"),
        head_dim=lambda config: config.embed_dim // config.num_heads,
    ),
    _drawn("qwen2_5_vl", "Qwen2_5_VLVision", "Qwen2_5_VLVision", _drawn_tower),
    _drawn("qwen3_vl", "Qwen3VLVision", "Qwen3VLVision", _drawn_tower),
    _drawn("glm4v", "Glm4vVision", "Glm4vVision", _drawn_tower),
    _drawn("inkling2", "Inkling2Vision", "Inkling2Vision", _BY_HEADS, order="interleaved"),
    _drawn("kimi_k25", "Kimi_K25Vision", "Kimi_K25Vision", _BY_HEADS, lanes_of=_pairwise),
    _drawn("step3p7", "Step3p7Vision", "Step3p7Vision", _BY_HEADS),
    _drawn(
        "minimax_m3_vl",
        "MiniMaxM3VLVision",
        "MiniMaxM3VLVision",
        partial(_BY_HEADS, step=10),
        lanes_of=_thrice,
        positions=(VOLUME,),
    ),
    _drawn(
        "pixtral",
        "PixtralVision",
        "PixtralVision",
        _BY_HEADS,
        lanes_of=_same,
        apply="apply_rotary_pos_emb",
        packed=False,
        unsqueeze=0,
    ),
    _drawn("sam3", "Sam3ViT", "Sam3ViT", _BY_HEADS, positions=(GRID, FINE), **_SAM),
    _drawn("sam2_video", "Sam2VideoVision", "Sam2Video", _drawn_memory, head_dim=_memory_width, **_SAM),
    Drawn(
        "gemma4",
        "Gemma4VisionConfig",
        lambda rng: {"head_dim": _drawn_heads(rng)[1], **_drawn_theta(rng)},
        lambda config: Probe(config, partial(_gemma4, config), config.head_dim, (GRID,)),
    ),
    Drawn(
        "llama4",
        "Llama4VisionConfig",
        partial(_BY_HEADS, kind="default"),
        lambda config: Probe(config, partial(_llama4, config), _head_dim(config), (GRID + 1,)),
    ),
    *(
        Drawn(
            model,
            f"{name}Config",
            _drawn_dino,
            lambda config, model=model, cls=f"{name}RopePositionEmbedding": Probe(
                config, partial(_dino, model, cls, config), _head_dim(config), (FINE / 40,)
            ),
        )
        for model, name in (("dinov3_vit", "DINOv3ViT"), ("sapiens2", "Sapiens2"))
    ),
    Drawn(
        "clvp",
        "ClvpEncoderConfig",
        _drawn_clvp,
        lambda config: Probe(config, partial(_clvp, config), _head_dim(config), (LINE,)),
    ),
    *(
        Drawn(
            model,
            f"{name}Config",
            _drawn_conformer,
            lambda config, model=model, name=name: Probe(
                config,
                partial(
                    _conformer, model, f"{name}RotaryPositionalEmbedding", f"{name}SelfAttention", config
                ),
                _head_dim(config),
                (LINE,),
            ),
        )
        for model, name in (("wav2vec2_bert", "Wav2Vec2Bert"), ("wav2vec2_conformer", "Wav2Vec2Conformer"))
    ),
    Drawn("musicflamingo", "MusicFlamingoConfig", _drawn_flamingo, _flamingo_probe),
    _drawn_line("glmasr", "GlmAsr", "GlmAsrEncoder", _drawn_share),
    _drawn_line("moonshine_streaming", "MoonshineStreaming", "MoonshineStreaming", _drawn_share),
    _drawn_line("nemotron3_diarization", "Nemotron3Diarization", "Nemotron3DiarizationAudio", _drawn_share),
    _drawn_line("pe_audio", "PeAudioEncoder", "PeAudioEncoder", _drawn_whole),
    _drawn_line("mimi", "Mimi", "Mimi", _drawn_whole),
    _drawn_line("qwen2_5_omni", "Qwen2_5OmniDiT", "Qwen2_5OmniDiT", _drawn_whole, apply=_first_head),
)
