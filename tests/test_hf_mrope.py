"""`positions.mrope` against `get_rope_index` of transformers: Qwen2.5-Omni, Qwen3-Omni, ERNIE-4.5-VL.

Collected only with `--models`, as it needs transformers and PyTorch. The tokens of a video with audio are
sorted by the model's own processor.
"""

import random
from types import MethodType, SimpleNamespace

import numpy as np
import pytest
import torch
from transformers.models.ernie4_5_vl_moe import modeling_ernie4_5_vl_moe as ernie
from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni as qwen2_5
from transformers.models.qwen2_5_omni import processing_qwen2_5_omni as processing2_5
from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as qwen3
from transformers.models.qwen3_omni_moe import processing_qwen3_omni_moe as processing3

from rope_array import ShapeError, positions

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
    made = SimpleNamespace(**attributes)
    for name in names:
        setattr(made, name, MethodType(getattr(cls, name), made))
    return made


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
    """A random batch of prompts, padded on one side, with the grids and lengths of what is in them."""

    def __init__(self, name, rng, mixed):
        self.name, self.rng, self.mixed = name, rng, mixed
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
        parts = [self.image] if not self.images else []
        parts += self.rng.choices([self.image, self.video, self.audio, self.text], k=self.rng.randint(1, 4))
        self.rng.shuffle(parts)
        return [token for part in [self.text, *parts, self.text] for token in part()]

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

    def ours(self, **changed):
        options = dict(image_token_id=IMAGE, video_token_id=VIDEO, audio_token_id=AUDIO, advance="last")
        options |= dict(tokens_per_second=self.rate, second_per_grid_ts=self.seconds or 1)
        options |= dict(mask=self.mask, time_rounding="seconds", **OMNI[self.name][2])
        return positions.mrope(self.ids, self.images, self.videos, **options | changed)


@pytest.mark.parametrize("mixed", [False, True], ids=["apart", "audio_in_video"])
@pytest.mark.parametrize("name", OMNI)
def test_omni(name, mixed):
    # Qwen3-Omni adds up in float32, and rounds each sum.
    exact = name == "qwen2_5_omni"
    for seed in range(12):
        prompts = Prompts(name, random.Random(seed), mixed)
        for got, want, near in zip(prompts.ours(), prompts.theirs(), (0, 1e-3), strict=True):
            np.testing.assert_allclose(got, want, rtol=0 if exact else 3e-6, atol=0 if exact else near)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("qwen2_5_omni", {"shared_delimiters": False}),
        ("qwen2_5_omni", {"audio_token_id": None, "shared_delimiters": False}),
        ("qwen2_5_omni", {"advance": "max"}),
        ("qwen2_5_omni", {"time_rounding": "interval"}),
        ("qwen3_omni", {"shared_delimiters": True}),
        ("qwen3_omni", {"dtype": "int64"}),
    ],
    ids=str,
)
def test_each_option_of_omni_matters(name, changed):
    def differs(prompts):
        try:
            pos, _ = prompts.ours(**changed)
        except ShapeError:
            return True
        return not np.allclose(pos, prompts.theirs()[0], rtol=3e-6)

    assert any(differs(Prompts(name, random.Random(seed), True)) for seed in range(30))


def test_ernie():
    for seed in range(20):
        rng = random.Random(seed)
        merge_frames = 1 + seed % 2
        blocks, rows = {1: [], 2: []}, []  # images and videos
        for _ in range(rng.randint(1, 3)):
            row = [0]
            for kind in rng.choices([0, 1, 2], k=rng.randint(1, 6)):
                if kind == 0:
                    row += [0] * rng.randint(1, 4)
                    continue
                t = merge_frames * rng.randint(1, 4) if kind == 2 else 1
                h, w = (MERGE * rng.randint(1, 4) for _ in range(2))
                blocks[kind].append((t, h, w))
                merged = t * h * w // MERGE**2 // (merge_frames if kind == 2 else 1)
                row += [*[kind] * merged, 0]  # the model tells adjacent blocks apart by text only
            rows.append(row)
        width = max(map(len, rows))
        mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
        rows = [[0] * (width - len(row)) + row for row in rows]
        vision = SimpleNamespace(temporal_merge_size=merge_frames, spatial_merge_size=MERGE)
        model = with_methods(
            ernie.Ernie4_5_VLMoeModel,
            *("get_rope_index", "get_vision_position_ids"),
            config=SimpleNamespace(vision_config=vision),
        )
        types, grids, keep = torch.tensor(rows), map(torch.tensor, blocks.values()), torch.tensor(mask)
        ids, want = model.get_rope_index(types, types, *grids, keep)
        pos, deltas = positions.mrope(
            rows, *blocks.values(), mask=mask, temporal_merge_size=merge_frames, advance="spatial"
        )
        assert pos.tolist() == ids.movedim(0, -1).tolist()
        assert deltas.tolist() == want[:, 0].tolist()


def test_qwen3_omni_sorts_tokens_in_two_ways():
    """The processor sorts by float64 times, the model by float32 times; the documentation says so."""
    prompts = Prompts("qwen3_omni", random.Random(0), True)
    prompts.rate, prompts.images, prompts.videos = 25, [(1, 2, 2)], [(16, 4, 2)]
    prompts.seconds, prompts.audios = [0.08], [300]
    sound = audio_length("qwen3_omni", 300)
    inner = sorted_tokens("qwen3_omni", (16, 4, 2), 0.08, sound, 25, 2)
    prompts.ids = [[10, VISION_START, IMAGE, VISION_END, VISION_START, *inner, VISION_END, 10]]
    prompts.mask = [[1] * len(prompts.ids[0])]
    audio = np.array(prompts.ids[0]) == AUDIO
    ours, theirs = (call()[0][0][audio] for call in (prompts.ours, prompts.theirs))
    assert sum(len({*point}) > 1 for point in theirs.tolist()) > 0
    assert ours.tolist() == [[ours[0, 0] + k] * 3 for k in range(sound)]
