"""`positions.mrope` against `get_rope_index` of transformers: Qwen2.5-Omni and Qwen3-Omni.

The tokens of a video with audio are sorted by the model's own processor.
"""

import random
from types import MethodType, SimpleNamespace

import numpy as np
import pytest
import torch
from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni as qwen2_5
from transformers.models.qwen2_5_omni import processing_qwen2_5_omni as processing2_5
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as qwen3
from transformers.models.qwen3_omni_moe import processing_qwen3_omni_moe as processing3

from rope_array import positions

pytestmark = pytest.mark.filterwarnings("default")  # allow the warnings of transformers

# Token ids: text is 10 or more.
IMAGE, VIDEO, AUDIO, VISION_START, VISION_END, AUDIO_START, AUDIO_END = range(1, 8)
MERGE = 2
OMNI = {
    "qwen2_5_omni": (
        qwen2_5.Qwen2_5OmniPreTrainedModelForConditionalGeneration,
        processing2_5.Qwen2_5OmniProcessor,
        {"shared_delimiters": True, "pad": 1},
    ),
    "qwen3_omni": (
        qwen3.Qwen3OmniMoePreTrainedModelForConditionalGeneration,
        processing3.Qwen3OmniMoeProcessor,
        {"dtype": "float32"},
    ),
}


def with_methods(cls, *names, **attributes):
    """Return an object with methods of a class that is too large to be made."""
    instance = SimpleNamespace(**attributes)
    for name in names:
        setattr(instance, name, MethodType(getattr(cls, name), instance))
    return instance


def audio_length(name, frames):
    """Return the tokens of `frames` frames of audio features."""
    if name == "qwen2_5_omni":
        return ((frames - 1) // 2 + 1 - 2) // 2 + 1
    return int(qwen3._get_feat_extract_output_lengths(torch.tensor(frames)))


def sorted_tokens(name, grid, seconds, audio, rate, chunk):
    """Return the tokens of a video with audio, as the processor of the model sorts them."""
    letters = {"audio_bos_token": "B", "audio_eos_token": "E", "audio_token": "A", "video_token": "V"}
    processor = with_methods(OMNI[name][1], "replace_video_with_audio_token", "get_chunked_index", **letters)
    processor.video_processor = SimpleNamespace(merge_size=MERGE)
    video = {"video_grid_thw": [grid], "video_second_per_grid": [seconds]}
    audio = {"num_audio_tokens": [audio]}
    text = processor.replace_video_with_audio_token(
        video, 0, audio, 0, position_id_per_seconds=rate, seconds_per_chunk=chunk
    )
    return [{"B": AUDIO_START, "E": AUDIO_END, "A": AUDIO, "V": VIDEO}[letter] for letter in text]


class Prompts:
    """A random batch of prompts, padded on one side, with the grids and lengths of their pictures and sound.

    `mixed`: the videos have sound.
    """

    def __init__(self, name, rng, mixed):
        self.name, self.rng, self.mixed = name, rng, mixed
        self.kinds = [self.image, self.video, self.text, self.audio]
        self.rate, self.chunk = rng.choice([25, 13]), rng.choice([1, 2])
        self.images, self.videos, self.seconds, self.audios = [], [], [], []
        prompts = [self.prompt() for _ in range(rng.randint(1, 3))]
        # There is an image in each batch: without images and videos both models number the mask instead.
        width = max(map(len, prompts)) + rng.randint(0, 2)
        left = rng.random() < 0.5
        self.ids, self.mask = [], []
        for tokens in prompts:
            gap = [0] * (width - len(tokens))
            self.ids.append([*gap, *tokens] if left else [*tokens, *gap])
            self.mask.append([*gap, *[1] * len(tokens)] if left else [*[1] * len(tokens), *gap])

    def prompt(self):
        blocks = [self.image] if not self.images else []
        blocks += self.rng.choices(self.kinds, k=self.rng.randint(1, 4))
        self.rng.shuffle(blocks)
        return [token for make_block in [self.text, *blocks, self.text] for token in make_block()]

    def text(self):
        return [self.rng.randint(10, 99) for _ in range(self.rng.randint(1, 4))]

    def side(self):
        return MERGE * self.rng.randint(1, 5)

    def image(self):
        self.images.append((1, self.side(), self.side()))
        return [VISION_START, *[IMAGE] * (self.images[-1][1] * self.images[-1][2] // MERGE**2), VISION_END]

    def audio(self):
        self.audios.append(self.rng.randint(3, 330))
        return [AUDIO_START, *[AUDIO] * audio_length(self.name, self.audios[-1]), AUDIO_END]

    def video(self):
        grid = (self.rng.choice([1, 3, 16]), self.side(), self.side())
        # Qwen3-Omni's processor sorts by float64 times, its model by float32 times: with 0.08 s these differ,
        # and the model gives an audio token the coordinates of a patch.
        seconds = self.rng.choice([0.08 if self.name == "qwen2_5_omni" else 0.3125, 2 / 3, 1.0, 3.7])
        self.videos.append(grid)
        self.seconds.append(seconds)
        if not self.mixed:
            return [VISION_START, *[VIDEO] * (np.prod(grid) // MERGE**2), VISION_END]
        self.audio()
        audio = audio_length(self.name, self.audios[-1])
        inner = sorted_tokens(self.name, grid, seconds, audio, self.rate, self.chunk)
        return [VISION_START, *inner, VISION_END]

    def theirs(self):
        """Return ids (B, S, 3) and deltas (B,) of the model."""
        ids = {"image": IMAGE, "video": VIDEO, "audio": AUDIO, "vision_start": VISION_START}
        config = {f"{name}_token_id": value for name, value in {**ids, "audio_start": AUDIO_START}.items()}
        config |= {"position_id_per_seconds": self.rate, "seconds_per_chunk": self.chunk}
        names = ("get_rope_index", "get_llm_pos_ids_for_vision", "get_chunked_index")
        model = with_methods(OMNI[self.name][0], *names, spatial_merge_size=MERGE)
        model.config = SimpleNamespace(**config, audio_config=SimpleNamespace(n_window=50))
        arrays = (self.ids, self.images, self.videos, self.mask, self.audios, self.seconds)
        tokens, images, videos, mask, audios, seconds = map(torch.tensor, arrays)
        ids, deltas = model.get_rope_index(
            tokens, images, videos.reshape(-1, 3), mask, self.mixed, audios, seconds
        )
        return ids.movedim(0, -1).numpy(), deltas[:, 0].numpy()

    def ours(self):
        options = dict(image_token_id=IMAGE, video_token_id=VIDEO, audio_token_id=AUDIO, advance="last")
        options |= dict(tokens_per_second=self.rate, second_per_grid_ts=self.seconds or 1)
        options |= dict(mask=self.mask, time_rounding="seconds", **OMNI[self.name][2])
        return positions.mrope(self.ids, self.images, self.videos, **options)


@pytest.mark.parametrize("mixed", [False, True], ids=["apart", "audio_in_video"])
@pytest.mark.parametrize("name", OMNI)
def test_omni(name, mixed):
    # Qwen3-Omni adds up in float32, and rounds each sum.
    exact = name == "qwen2_5_omni"
    for seed in range(30):
        prompts = Prompts(name, random.Random(seed), mixed)
        for ours, theirs, near in zip(prompts.ours(), prompts.theirs(), (0, 1e-3), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0 if exact else 3e-6, atol=0 if exact else near)
