"""The inputs of tiny models: random tokens, pictures, sound and features."""

import inspect
import re
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import torch
from hf._compare import FLOAT32
from hf._tiny_config import HIDDEN

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


def with_features(inputs):
    """Return inputs whose tuples, the shapes of features, are made into features."""
    return {name: normal(*value) if isinstance(value, tuple) else value for name, value in inputs.items()}


def features(**inputs):
    """Return the maker of inputs, given as arrays or as the shapes of features."""
    return lambda model: with_features(inputs)


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


def pixels(count, **features):
    """Return the maker of a text with a picture of `count` tokens, in an array of pixels."""
    return lambda model: {
        **with_image_tokens(model, count),
        **with_features({"pixel_values": (BATCH, 3, SIDE, SIDE), **features}),
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


def inputs(model_type, model):
    """Return keyword arguments for a model, with floats of the default dtype."""
    takes_grids = "image_grid_thw" in inspect.signature(model.forward).parameters
    return INPUTS.get(model_type, patches if takes_grids else text)(model)


def sound(model):
    """Return a text with 12 tokens of sound."""
    inputs = text(model)
    inputs["input_ids"][:, 5:17] = model.config.audio_token_id
    mask = torch.ones(BATCH, 96, dtype=torch.int64)
    return {**inputs, "input_features": normal(BATCH, 96, 128), "input_features_mask": mask}


SHORT = tokens(BATCH, 12)
IMAGE = features(pixel_values=(BATCH, 3, 64, 56))
SPEECH = features(input_values=(BATCH, 4000), decoder_input_ids=SHORT)
CODED = features(input_values=(BATCH, 1, 2560), input_features=(BATCH, 8, 160))
SPECTRUM = features(input_features=(BATCH, 96, 128))

# By model type; the others have a text, with pictures if they take grids.
INPUTS: Mapping[str, Maker] = {
    **dict.fromkeys(("apertus1p5", "glm_image", "hunyuan_vl", "hy_v4_vl"), text),
    **dict.fromkeys(("dinov3_vit", "mlcd", "pixtral", "sapiens2"), IMAGE),
    **dict.fromkeys(("lasr", "nemotron3_diarization"), SPECTRUM),
    **dict.fromkeys(("moonshine", "moonshine_streaming"), SPEECH),
    **dict.fromkeys(("neucodec", "xcodec2"), CODED),
    "clvp": features(input_features=(BATCH, 80, 24), input_ids=SHORT),
    "dia": features(input_ids=tokens(BATCH, LENGTH), decoder_input_ids=tokens(BATCH, 12, 9)),
    "diffusion_gemma": lambda model: {**text(model), "decoder_input_ids": tokens(BATCH, 256)},
    "efficientloftr": features(pixel_values=(BATCH, 2, 3, 64, 64)),
    "eomt_dinov3": features(pixel_values=(BATCH, 3, 64, 64)),
    "gemma4": places,
    "idefics": features(
        pixel_values=(BATCH, 1, 3, SIDE, SIDE),
        input_ids=tokens(BATCH, LENGTH),
        image_attention_mask=torch.ones(BATCH, LENGTH, 1),
    ),
    "kyutai_speech_to_text": features(input_ids=tokens(BATCH, LENGTH, 33)),
    "llama4": pixels(4),
    "mimi": features(input_values=(BATCH, 1, 400), audio_codes=tokens(BATCH, 4, LENGTH)),
    "mistral_large4": pixels(4, image_sizes=torch.tensor([[SIDE, SIDE]] * BATCH)),
    "muse_glimmer_assistant": features(
        noise_embeds=(BATCH, 8, HIDDEN), context_hidden_states=(BATCH, 16, HIDDEN)
    ),
    "nemotron3_5_transcribe": sound,
    "pe_audio": features(input_values=(BATCH, 1, 4000), input_ids=SHORT),
    "pocket_tts_audio_tokenizer": features(input_values=(BATCH, 1, 400)),
    "sam3": features(pixel_values=(BATCH, 3, SIDE, SIDE), input_ids=SHORT),
    "seamless_m4t": features(input_features=(BATCH, LENGTH, 160), decoder_input_ids=SHORT),
    "step3p7": pixels(1),
    "timesfm2_5": features(past_values=(BATCH, 256)),
    "vjepa2": features(pixel_values_videos=(BATCH, 4, 3, 32, 32)),
    "voxtral_realtime": features(input_features=(BATCH, 128, 96), input_ids=SHORT),
    "wav2vec2_bert": features(input_features=(BATCH, LENGTH, 160)),
    "wav2vec2_conformer": features(input_values=(BATCH, 4000)),
}
