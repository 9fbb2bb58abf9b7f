"""A trainer in PyTorch, this process, and an engine, vLLM in another: fingerprints, and bits of q and k."""

import functools
import re
from pathlib import Path
from unittest import mock

import pytest
import torch
from serving.test_engine import run, start
from serving.tiny_models import config_of, prompts
from serving.vllm_layers import LAYERS, class_of, make
from transformers import AutoModelForCausalLM

import rope_array as ra
import rope_array.vllm
from rope_array import FingerprintError, hf
from rope_array._engines.ropes import ROPES
from rope_array.vllm._register import register

pytestmark = pytest.mark.library("torch")
FAR = 100_000
DOCS = Path(__file__).parents[2] / "docs"
EXAMPLE, PAGE = DOCS / "examples" / "reinforcement.py", DOCS / "in-my-model" / "reinforcement.md"
SHOWN = re.compile("^```text\n(rope_array in neither.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module", autouse=True)
def replaced():
    register("1")


# ---- layers ----


def model_with(*layers, dtype=torch.float32, **attributes):
    """Return a model whose attentions have rotary embeddings and other attributes."""
    model = torch.nn.Module()
    model.embedding = torch.nn.Embedding(3, 4, dtype=dtype)
    model.layers = torch.nn.ModuleList(torch.nn.Module() for _ in layers)
    for holder, layer in zip(model.layers, layers, strict=True):
        holder.attention = torch.nn.Module()
        holder.attention.rotary_emb = layer
        vars(holder.attention).update(attributes)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", [name for name in LAYERS if name != "patches"])
def test_a_layer_has_the_fingerprint_of_its_rope_and_a_stock_one_its_numbers(name, dtype):
    rope = ROPES[LAYERS[name][0]](make(name))
    expected = ra.fingerprint(rope, length=1024, like=torch.empty(0, dtype=dtype))
    exact, stock = make(name, dtype=dtype), make(name, stock=True, dtype=dtype)
    assert (
        rope_array.vllm.fingerprint(model_with(exact, exact, dtype=dtype), length=1024).difference(expected)
        == ""
    )
    found = rope_array.vllm.fingerprint(model_with(stock, dtype=dtype), length=1024).difference(expected)
    assert found.startswith("layers 0: " + ("float32 angles" if dtype == torch.float32 else "16-bit tables"))


def test_a_table_is_not_read_past_its_end_and_stays_in_its_dtype():
    layer = make("default", stock=True)
    model, table = model_with(layer, dtype=torch.bfloat16), layer.cos_sin_cache
    rope_array.vllm.fingerprint(model, length=4096)
    assert layer.cos_sin_cache is table
    with pytest.raises(
        FingerprintError, match=r"ends at position 4096, and the length is 4097\. Give length=4096"
    ):
        rope_array.vllm.fingerprint(model, length=4097)
    for name, rows in ("longrope short", 1024), ("longrope long", 4096):
        with pytest.raises(FingerprintError, match=f"ends at position {rows},"):
            rope_array.vllm.fingerprint(model_with(make(name, stock=True)), length=4097)


@pytest.mark.parametrize("flags", [{"use_rope": False}, {"v1": False, "sliding_window": None}], ids=str)
def test_a_layer_that_does_not_call_its_rotary_embedding_has_no_rotation(flags):
    assert not rope_array.vllm.fingerprint(model_with(make("default"), **flags), length=64).rotations


def test_a_layer_that_is_no_rotation_is_refused():
    layer = torch.nn.Module.__new__(class_of("DualChunkRotaryEmbedding"))
    torch.nn.Module.__init__(layer)
    with pytest.raises(
        FingerprintError, match=r"rotary_emb .DualChunk.* five positions\. Measure its code apart"
    ):
        rope_array.vllm.fingerprint(model_with(layer), length=64)


# ---- engines ----


def trainer(name, dtype="float32"):
    """Return a model whose sums before the first rotation are exact, in any order: signs times eighths."""
    config = config_of(name)
    config.rms_norm_eps = 0.0
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        model.model.embed_tokens.weight.sign_()
        for weight in (
            model.model.layers[0].self_attn.q_proj.weight,
            model.model.layers[0].self_attn.k_proj.weight,
        ):
            weight.mul_(8).round_().div_(8)
    return model.to(getattr(torch, dtype))


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    """Return a function that returns the fingerprint of an engine, and the folder with its q and k."""

    @functools.cache
    def start(mode, dtype, name):
        folder = tmp_path_factory.mktemp("engine")
        options = {"fingerprint": True, "prompts": prompts(1), "dtype": dtype, "max_tokens": 1}
        config = functools.partial(trainer(name).save_pretrained, folder)
        answers, _ = run(name, folder, mode, config=config, shifts=[0, FAR], **options)
        return ra.Fingerprint.parse(answers["fingerprint"]), folder

    return start


def heads_of(model, shift):
    """Return the q and k that attention gets in the first layer, as (S, heads, head_dim)."""
    functional, tokens = torch.nn.functional, torch.tensor(prompts(1))
    pos, attend = torch.arange(tokens.shape[1])[None] + shift, functional.scaled_dot_product_attention
    with mock.patch.object(functional, "scaled_dot_product_attention", wraps=attend) as spy, torch.no_grad():
        model(tokens, position_ids=pos)
    return [x[0].transpose(0, 1) for x in spy.call_args_list[0].args[:2]]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), [("llama", "float32"), ("llama", "bfloat16"), ("glm", "float32")])
def test_trainer_and_engine_have_equal_fingerprints_and_equal_q_and_k(name, dtype, engine):
    """vLLM takes GLM from transformers, and calls its attention without hooks, which would keep q and k."""
    theirs, folder = engine("1", dtype, name)
    model = trainer(name, dtype)
    hf.patch(model)
    hf.fingerprint(model).check(theirs)
    assert hf.fingerprint(model).hash == theirs.hash
    for shift in (0, FAR) if name == "llama" else ():
        for mine, other in zip(heads_of(model, shift), torch.load(folder / f"heads-{shift}.pt"), strict=True):
            other = other.view(len(mine), -1, mine.shape[-1])
            assert torch.equal(mine[:, :: mine.shape[1] // other.shape[1]], other)
            assert mine.abs().max() > 1


UNLIKE = {"rule": "yarn", "pairing": "ernie", "16-bit tables": "llama"}


@pytest.mark.slow
@pytest.mark.parametrize("difference", UNLIKE)
def test_the_guard_explains_a_trainer_that_rotates_otherwise(difference, engine):
    """Stock tables of vLLM have the model's dtype; the example has another base."""
    stock = difference == "16-bit tables"
    model = trainer(UNLIKE[difference], "bfloat16" if stock else "float32")
    hf.patch(model)
    theirs, _ = engine("0", "bfloat16", "llama") if stock else engine("1", "float32", "llama")
    with pytest.raises(FingerprintError, match=f"the rotations differ: layers 0-1: {difference}: "):
        hf.fingerprint(model).check(theirs)


@pytest.mark.slow
def test_the_example_prints_the_lines_of_the_page():
    """Its figures are of one machine: the test compares their sizes."""
    done = start(EXAMPLE, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr[-4000:]
    lines, (shown,) = done.stdout.splitlines(), SHOWN.findall(PAGE.read_text("utf-8"))
    number = r"\d+(\.\d+)?(e-\d+)?"
    assert [re.sub(number, "0", line) for line in lines] == [
        re.sub(number, "0", line) for line in shown.splitlines()
    ]
    neither, trainer, engine, both = ([float(text) for text in line.split()[-2:]] for line in lines[:4])
    assert max(*neither, *both, trainer[0], engine[0]) < 2e-4 < 1e-2 < min(trainer[1], engine[1])
    assert float(lines[7].split()[3][:-1]) > float(lines[4].split()[3][:-1])  # the reward
