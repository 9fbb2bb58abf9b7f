"""Small transformers models with random weights, whose rotation is replaced by ours.

A patched model passes raw positions in place of cos and sin to our function, which rotates by a rope. The
model still computes its own tables, but nothing reads them.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import pytest
import torch
import transformers
from hf._walk import modeling

import rope_array as ra

# Charles Darwin, On the Origin of Species, 1859, the first sentences of the introduction.
PASSAGE = (
    "When on board H.M.S. ‘Beagle,’ as naturalist, I was much struck with certain facts in the distribution "
    "of the inhabitants of South America, and in the geological relations of the present to the past "
    "inhabitants of that continent. These facts seemed to me to throw some light on the origin of species—"
    "that mystery of mysteries, as it has been called by one of our greatest philosophers."
)
Ropes = dict[Any, ra.RoPE]
Model = Any


def tokens(text: str) -> torch.Tensor:
    """Return a text's UTF-8 bytes as token ids, (1, S)."""
    return torch.tensor([[*text.encode()]])


@dataclass(frozen=True, eq=False)
class Family:
    """A model class, its small config, and how its rotation is replaced.

    `ropes` reads our ropes from the model's config. `install` patches the model to use them, with `Swap`.
    `rotations` has the number of calls of each rope in one forward pass, by the keys of `ropes`.
    """

    name: str
    cls: str
    config: Callable[[], Any]
    ropes: Callable[[Any], Ropes]
    install: Callable[["Swap", Model, Ropes], None]
    rotations: Mapping[Any, int]
    inputs: Callable[[str], dict[str, torch.Tensor]] = lambda text: {"input_ids": tokens(text)}


# Precision

FLOAT32, FLOAT64 = torch.float32, torch.float64  # bound here: `precision` patches torch.float32


@contextmanager
def precision(dtype: torch.dtype) -> Iterator[None]:
    """Run models in a dtype; for float64, make the name `float32` mean float64.

    Models of every dtype compute frequencies, angles, norms and softmax in float32 by name. With the name
    patched, the model's own code computes its logits in float64 throughout.
    """
    if dtype is FLOAT32:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        for name in ("float", "float32"):
            patch.setattr(torch, name, dtype)
        patch.setattr(torch, "FloatTensor", torch.DoubleTensor)
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(FLOAT32)


@functools.cache
def built(family: Family, dtype: torch.dtype) -> Model:
    """Return the model, with the same weights in both dtypes. It is cached: undo every change to it."""
    cls = getattr(transformers, family.cls)
    with torch.random.fork_rng(), precision(dtype):
        torch.manual_seed(0)
        model = cls(family.config()).eval()
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):  # initially zero
                torch.nn.init.normal_(parameter, std=0.2)
            elif name.endswith("q_norm.weight"):  # Gemma-4 does not divide scores by a root of the width
                torch.nn.init.constant_(parameter, 0.25)
    if dtype is FLOAT64:
        # RoFormer's sinusoidal tables are weights. Keep the float64 tables: the float32 tables are rounded.
        weights = built(family, FLOAT32).state_dict()
        kept = {name: w for name, w in weights.items() if "embed_positions" not in name}
        left = model.load_state_dict(kept, strict=False)
        assert len(kept) + len(left.missing_keys) == len(weights)
    return model


def run(model: Model, call: Callable[[], Any]) -> Any:
    """Call a model in its precision."""
    with precision(next(model.parameters()).dtype), torch.no_grad():
        return call()


def logits(family: Family, model: Model, **more: Any) -> torch.Tensor:
    """Return the logits of the passage, in float64."""
    return run(model, lambda: model(**family.inputs(PASSAGE), **more)).logits.to(FLOAT64)


# Our rotation in place of theirs


class Swap:
    """Patch a model, and count the calls of our rotation."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch
        self.calls: Counter[Any] = Counter()
        self.positions: list[torch.Tensor] = []  # from each call of a module patched by `send_positions`
        self._hooks: list[Any] = []

    def rotate(self, x: Any, positions: Any, rope: ra.RoPE, seq_axis: int = -2) -> Any:
        """Rotate by raw positions."""
        assert positions.dtype == torch.int64
        self.calls[rope] += 1
        return rope.apply(x, positions, seq_axis=seq_axis)

    def send(self, module: Any, replaced: Callable[..., Any]) -> None:
        """Make a module return `replaced`, called with the module's arguments, in place of cos and sin."""
        hook = module.register_forward_hook(
            lambda module, args, kwargs, out: replaced(*args, **kwargs), with_kwargs=True
        )
        self._hooks.append(hook)

    def send_positions(self, module: Any, rope: ra.RoPE, axis: int | None = None) -> None:
        """Send (positions, rope) for (cos, sin); move the coordinates from `axis` to the last axis."""

        def replaced(x: Any, position_ids: Any) -> Any:
            positions = position_ids if axis is None else position_ids.movedim(axis, -1)
            self.positions.append(positions)
            return positions, rope

        self.send(module, replaced)

    def both(self, owner: Any, name: str = "apply_rotary_pos_emb", seq_axis: int = -2) -> None:
        """Replace a function of (q, k, cos, sin)."""
        self.patch.setattr(owner, name, lambda q, k, pos, rope: self.rotate((q, k), pos, rope, seq_axis))

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()


@contextmanager
def swapped(
    family: Family, model: Model, change: Callable[[ra.RoPE], ra.RoPE] = lambda rope: rope, key: Any = None
) -> Iterator[Swap]:
    """Patch a model with ropes read from its config; `change` the rope of `key`, or all ropes."""
    ropes = family.ropes(model.config)
    ropes |= {name: change(rope) for name, rope in ropes.items() if key in (None, name)}
    with pytest.MonkeyPatch.context() as patch:
        swap = Swap(patch)
        try:
            family.install(swap, model, ropes)
            yield swap
        finally:
            swap.remove()


def whole(config: Any) -> Ropes:
    """Read the one rope of a model."""
    return {"text": ra.RoPE.from_config(config)}


def inner(model: Model) -> Any:
    """Return the model without its language-model head."""
    return model.base_model


def llama(module: str) -> Callable[[Swap, Model, Ropes], None]:
    """Return `install` for most models: patch the model's `rotary_emb`, and one function of q and k."""

    def install(swap: Swap, model: Model, ropes: Ropes) -> None:
        swap.send_positions(inner(model).rotary_emb, ropes["text"])
        swap.both(modeling(module))

    return install


def deepseek(swap: Swap, model: Model, ropes: Ropes) -> None:
    """DeepSeek-V3: patch its separate function for interleaved weights."""
    swap.send_positions(inner(model).rotary_emb, ropes["text"])
    swap.both(modeling("deepseek_v3"), "apply_rotary_pos_emb_interleave")


def gptj(swap: Swap, model: Model, ropes: Ropes) -> None:
    """GPT-J: each attention gathers from its own table; replace the table's values by the positions.

    Without `rotary_dim`, the attention passes whole heads, and our rope selects the rotated features.
    """
    for layer in inner(model).h:
        table = layer.attn.embed_positions
        count = torch.arange(len(table), dtype=table.dtype)[:, None]
        swap.patch.setitem(layer.attn._buffers, "embed_positions", count.expand(-1, 2))
        swap.patch.setattr(layer.attn, "rotary_dim", None)

    def rotate(x: Any, sin: Any, cos: Any) -> Any:
        return swap.rotate(x, cos[..., 0].long(), ropes["text"], seq_axis=-3)

    swap.patch.setattr(modeling("gptj"), "apply_rotary_pos_emb", rotate)


def roformer(swap: Swap, model: Model, ropes: Ropes) -> None:
    """RoFormer: one sinusoidal table for all layers; the encoder adds two leading axes to it."""

    def replaced(shape: Any, past: int = 0) -> Any:
        return torch.arange(past, past + shape[1])[:, None]

    def rotate(positions: Any, *xs: Any) -> Any:
        return swap.rotate(xs, positions[0, 0, :, 0], ropes["text"])

    swap.send(inner(model).encoder.embed_positions, replaced)
    owner = modeling("roformer").RoFormerSelfAttention
    swap.patch.setattr(owner, "apply_rotary_position_embeddings", staticmethod(rotate))


def qwen2_vl(swap: Swap, model: Model, ropes: Ropes) -> None:
    """Qwen2-VL: three coordinates of a token, two of a patch."""
    module = modeling("qwen2_vl")
    swap.send_positions(model.model.language_model.rotary_emb, ropes["text"], axis=0)
    swap.send_positions(model.model.visual.rotary_pos_emb, ropes["vision"])
    swap.both(module)
    swap.both(module, "apply_rotary_pos_emb_vision", seq_axis=-3)


def gemma4(swap: Swap, model: Model, ropes: Ropes) -> None:
    """Gemma-4: a rope for each layer type; the function gets one array at a time, (B, S, H, D).

    The model slices both tables to the tokens whose logits it returns, so both contain the positions. The
    head width selects the rope, as it differs between the layer types.
    """
    of_width = {ropes[kind].head_dim: ropes[kind] for kind in TYPES}
    assert len(of_width) == len(TYPES)

    def rotate(x: Any, cos: Any, sin: Any, unsqueeze_dim: int) -> Any:
        assert unsqueeze_dim == 2
        return swap.rotate(x, cos[..., 0], of_width[x.shape[-1]], seq_axis=-3)

    rotary = getattr(inner(model), "language_model", inner(model)).rotary_emb
    swap.send(rotary, lambda x, positions, layer_type: (positions[..., None],) * 2)
    swap.patch.setattr(modeling("gemma4"), "apply_rotary_pos_emb", rotate)


def gemma4_pictures(swap: Swap, model: Model, ropes: Ropes) -> None:
    """Gemma-4 with its vision tower, which passes the coordinates to its rotation."""

    def rotate(x: Any, cos: Any, sin: Any, positions: Any) -> Any:
        return swap.rotate(x, positions, ropes["vision"], seq_axis=-3)

    gemma4(swap, model, ropes)
    swap.send(model.model.vision_tower.encoder.rotary_emb, lambda x, positions: (None, None))
    swap.patch.setattr(modeling("gemma4"), "apply_multidimensional_rope", rotate)


# The models. Weights are larger than at the start of training, so that scores are of the order of 1 and the
# rotation matters to the logits.

SIZE: Mapping[str, Any] = {"vocab_size": 256, "initializer_range": 0.2, "max_position_embeddings": 512}
ONCE = {"text": 2}  # q and k together, in each of two layers
DENSE: Mapping[str, Any] = {**SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
GROUPED: Mapping[str, Any] = {**DENSE, "num_attention_heads": 4, "num_key_value_heads": 2}


def made(name: str, **values: Any) -> Callable[[], Any]:
    """Return a function that makes a transformers config."""
    return lambda: getattr(transformers, f"{name}Config")(**values)


# Rules that change pairs whose wavelength is shorter than the passage.
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 64,
    "mscale": 1.0,
    "mscale_all_dim": 0.5,
}

IMAGE, VIDEO, START, END = 256, 257, 258, 259
GRIDS = {IMAGE: [1, 6, 8], VIDEO: [3, 4, 6]}  # frames, rows and columns of patches, before 2 × 2 are merged


def qwen2_vl_config() -> Any:
    """Return a config with 8 pairs in sections, and a vision tower with 2-D rotation."""
    text = {**GROUPED, "vocab_size": 260, "bos_token_id": None, "eos_token_id": None}
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}
    vision = {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "patch_size": 4}
    return transformers.Qwen2VLConfig(
        text_config=text,
        vision_config={**vision, "initializer_range": 0.2},
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=START,
        vision_end_token_id=END,
    )


def drawn(*shape: int) -> torch.Tensor:
    """Return random pixels, the same in both dtypes."""
    values = torch.rand(shape, generator=torch.Generator().manual_seed(1), dtype=FLOAT32)
    return values.to(torch.get_default_dtype())


def pictures(text: str) -> dict[str, torch.Tensor]:
    """Insert a picture after a third of a text, and a video after two thirds."""
    parts, given = [*tokens(text)[0].tensor_split(3)], {}
    for place, token, grid, pixels in (
        (1, IMAGE, "image_grid_thw", "pixel_values"),
        (3, VIDEO, "video_grid_thw", "pixel_values_videos"),
    ):
        patches = prod(GRIDS[token])
        parts.insert(place, torch.tensor([START] + [token] * (patches // 4) + [END]))
        given |= {grid: torch.tensor([GRIDS[token]]), pixels: drawn(patches, 3 * 2 * 4 * 4)}
    ids = torch.cat(parts)[None]
    return {"input_ids": ids, "mm_token_type_ids": (ids == IMAGE).int() + 2 * (ids == VIDEO).int(), **given}


def gemma4_config() -> Any:
    """Return the config of the language model with a vision tower."""
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    vision |= {"head_dim": 16, "patch_size": 4}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    return transformers.Gemma4Config(
        text_config=GEMMA4,
        vision_config={**vision, **heads, "position_embedding_size": 16, "initializer_range": 0.2},
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        audio_token_id=START,
    )


def picture(text: str) -> dict[str, torch.Tensor]:
    """Insert a picture of 6 rows of 9 patches, and one row of padding, into the middle of a text."""
    first, second = tokens(text)[0].tensor_split(2)
    ids = torch.cat((first, torch.full((6,), IMAGE), second))[None]  # one token for 3 × 3 patches
    places = torch.tensor([(x, y) for y in range(6) for x in range(9)] + [(-1, -1)] * 9)
    kinds = (ids == IMAGE).int()
    return {
        "input_ids": ids,
        "mm_token_type_ids": kinds,
        "pixel_values": drawn(1, len(places), 3 * 4 * 4),
        "image_position_ids": places[None],
    }


ROFORMER = {**DENSE, "num_attention_heads": 4, "embedding_size": 64}
TYPES = SLIDING, FULL = "sliding_attention", "full_attention"
GEMMA4 = {
    **GROUPED,
    "vocab_size": 260,
    "num_hidden_layers": 6,
    "head_dim": 16,
    "global_head_dim": 32,
    "sliding_window": 48,
    "layer_types": [SLIDING, SLIDING, FULL, SLIDING, SLIDING, FULL],
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 260,
}
# q in every layer, k in the layers that do not share another layer's k
GEMMA4_ROTATIONS = {SLIDING: 7, FULL: 3}


def by_type(config: Any) -> Ropes:
    """Read the rope of each type of layer."""
    return {kind: ra.RoPE.from_config(config, layer_type=kind) for kind in TYPES}


FAMILIES = (
    Family("roformer", "RoFormerForMaskedLM", made("RoFormer", **ROFORMER), whole, roformer, ONCE),
    Family(
        "roformer that rotates values",
        "RoFormerForCausalLM",
        made("RoFormer", **ROFORMER, rotary_value=True, is_decoder=True),
        whole,
        roformer,
        ONCE,
    ),
    Family(
        "llama",
        "LlamaForCausalLM",
        made("Llama", **GROUPED, rope_parameters=LLAMA3),
        whole,
        llama("llama"),
        ONCE,
    ),
    Family(
        "gpt_neox",
        "GPTNeoXForCausalLM",
        made("GPTNeoX", **DENSE, num_attention_heads=2),
        whole,
        llama("gpt_neox"),
        ONCE,
    ),
    Family(
        "gptj",
        "GPTJForCausalLM",
        made(
            "GPTJ",
            vocab_size=256,
            n_positions=512,
            n_embd=64,
            n_layer=2,
            n_head=2,
            rotary_dim=8,
            initializer_range=0.2,
            bos_token_id=None,
            eos_token_id=None,
        ),
        whole,
        gptj,
        {"text": 4},  # q and k one by one
    ),
    Family(
        "glm",
        "GlmForCausalLM",
        made("Glm", **GROUPED, head_dim=16, pad_token_id=0, eos_token_id=None),
        whole,
        llama("glm"),
        ONCE,
    ),
    Family(
        "qwen2_vl",
        "Qwen2VLForConditionalGeneration",
        qwen2_vl_config,
        lambda config: {part: ra.RoPE.from_config(config, part=part) for part in ("text", "vision")},
        qwen2_vl,
        {"text": 2, "vision": 4},  # the picture and the video one by one
        pictures,
    ),
    Family(
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        made(
            "DeepseekV3",
            **{**DENSE, "num_hidden_layers": 3},
            num_attention_heads=4,
            q_lora_rank=24,
            kv_lora_rank=16,
            qk_rope_head_dim=16,
            qk_nope_head_dim=8,
            v_head_dim=12,
            n_routed_experts=4,
            n_group=2,
            topk_group=1,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            first_k_dense_replace=1,
            experts_implementation="eager",  # the default implementation has no float64
            rope_parameters=YARN,
        ),
        whole,
        deepseek,
        {"text": 3},
    ),
    Family("gemma4", "Gemma4ForCausalLM", made("Gemma4Text", **GEMMA4), by_type, gemma4, GEMMA4_ROTATIONS),
    Family(
        "gemma4 with a picture",
        "Gemma4ForConditionalGeneration",
        gemma4_config,
        lambda config: {**by_type(config), "vision": ra.RoPE.from_config(config, part="vision")},
        gemma4_pictures,
        {**GEMMA4_ROTATIONS, "vision": 4},
        picture,
    ),
)
