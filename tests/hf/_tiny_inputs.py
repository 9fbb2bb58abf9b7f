"""The inputs of tiny models: random tokens, pictures, sound and features."""

import inspect
import re
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import torch
from hf._compare import FLOAT32
from hf._tiny_config import FAMILY, by_family

BATCH, LENGTH = 2, 24
GRID = (1, 4, 6)  # frames, rows and columns of patches, before the model merges 2 × 2
SIDE = 56  # pixels of a picture that is an array of pixels

Inputs = dict[str, Any]
Maker = Callable[[Any], Inputs]  # takes the model


def normal(*shape):
    """Return random features, the same in each dtype."""
    values = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=FLOAT32)
    return values.to(torch.get_default_dtype())


def tokens(*shape):
    """Return ids that no special token has."""
    return torch.randint(3, 30, shape, generator=torch.Generator().manual_seed(1))


def text(model):
    """Return a text, and the decoder's text for a model that has an encoder and a decoder."""
    ids = tokens(BATCH, LENGTH)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids[:, : LENGTH // 2].flip(0)
    return inputs


def arrays(shapes):
    """Return arrays of shapes by name: of tokens, ones or features, as the name ends."""
    makers = {"ids": tokens, "codes": tokens, "mask": torch.ones}
    return {name: makers.get(name.rpartition("_")[2], normal)(*shape) for name, shape in shapes.items()}


# Texts with a picture in each row


def with_image_tokens(model, count):
    """Return a text with `count` tokens of a picture, and their types if the model asks for them."""
    config, inputs = model.config, text(model)
    token = getattr(config, "image_token_id", None) or config.image_token_index
    inputs["input_ids"][:, 5 : 5 + count] = token
    names = inspect.signature(model.forward).parameters
    for name in {"mm_token_type_ids", "moe_mm_token_type_ids"} & names.keys():
        inputs[name] = (inputs["input_ids"] == token).int()
    return inputs


def patches(model):
    """Return a text with pictures that are arrays of patches, of sizes that a grid gives."""
    vision = model.config.vision_config
    merge = getattr(vision, "spatial_merge_size", None) or getattr(vision, "merge_size", None) or 2
    inputs = with_image_tokens(model, prod(GRID) // merge**2)
    inputs["pixel_values"] = normal(BATCH * prod(GRID), *patch_shape(model))
    inputs["image_grid_thw"] = torch.tensor([GRID] * BATCH)
    if model.config.model_type == "inkling2":  # its patches are merged already
        side = merge * vision.patch_size
        inputs["pixel_values"] = inputs["pixel_values"].reshape(-1, side, side, vision.num_channels)
        inputs["image_grid_thw"][:, 1:] //= merge
    if model.config.model_type == "video_llama_3":
        inputs["image_merge_sizes"] = torch.tensor([merge] * BATCH)
    return inputs


def patch_shape(model):
    """Return the shape of a patch, from the first layer of the vision tower."""
    layer = re.compile("patch_embed|embeddings.*proj")
    weight = next(p for name, p in model.named_parameters() if layer.search(name) and p.ndim >= 2)
    return tuple(weight.shape[1:]) if model.config.model_type in SQUARE else (weight[0].numel(),)


SQUARE = ("kimi_k25", "paddleocr_vl")  # their patches are squares, other models' are flat


def pixels(count, **more):
    """Return the maker of a text with a picture of `count` tokens, in an array of pixels."""
    return lambda model: {
        **with_image_tokens(model, count),
        "pixel_values": normal(BATCH, 3, SIDE, SIDE),
        **more,
    }


def places(model):
    """Return a text with a picture of 6 × 6 patches with their places, which become 4 tokens."""
    every = torch.tensor([(x, y) for y in range(6) for x in range(6)])
    return {
        **with_image_tokens(model, 4),
        "pixel_values": normal(BATCH, len(every), 3 * 16 * 16),
        "image_position_ids": every.expand(BATCH, -1, -1),
    }


# Others


def sound(model):
    """Return a text with 12 tokens of sound."""
    inputs = text(model)
    inputs["input_ids"][:, 5:17] = model.config.audio_token_id
    mask = torch.ones(BATCH, 96, dtype=torch.int64)
    return {**inputs, "input_features": normal(BATCH, 96, 128), "input_features_mask": mask}


# By model type; the others have arrays alone, or a text, with pictures if they take grids.
MAKERS: Mapping[str, Maker] = {
    **dict.fromkeys(("apertus1p5", "glm_image", "hunyuan_vl", "hy_v4_vl"), text),
    "diffusion_gemma": lambda model: {**text(model), "decoder_input_ids": tokens(BATCH, 256)},
    "gemma4": places,
    "llama4": pixels(4),
    "mistral_large4": pixels(4, image_sizes=torch.tensor([[SIDE, SIDE]] * BATCH)),
    "nemotron3_5_transcribe": sound,
    "step3p7": pixels(1),
}
SHAPES = by_family(FAMILY["inputs"])


def inputs(model_type, model):
    """Return keyword arguments for a model, with floats of the default dtype."""
    if model_type in SHAPES:
        return arrays(SHAPES[model_type])
    takes_grids = "image_grid_thw" in inspect.signature(model.forward).parameters
    return MAKERS.get(model_type, patches if takes_grids else text)(model)
