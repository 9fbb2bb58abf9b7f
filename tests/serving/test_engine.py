"""Whole engines of vLLM with tiny models, stock and in both modes, against the models in float64.

Each engine runs in a process of its own, from the entry point: nothing here imports vLLM.
"""

import functools
import json
import re
from pathlib import Path

import child
import pytest
import torch
from serving.tiny_models import MODELS, exact_log_probabilities, prompts, save

pytestmark = [pytest.mark.library("torch"), pytest.mark.slow]
ENGINE = Path(__file__).with_name("engine.py")
start = functools.partial(child.python, "-P", timeout=600)
SHIFTS = [0, 100_000, 1_000_000]
OPTIONS = {"deepseek": {"attention_config": {"backend": "CPU_MLA"}}}  # the other needs bfloat16


def start_engine(folder, variable, cache=None, **options):
    environment = {} if variable is None else {"ROPE_ARRAY_VLLM": variable}
    environment["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] = "1"  # for models with short tables
    return start(ENGINE, folder, json.dumps(options), VLLM_CACHE_ROOT=str(cache or folder), **environment)


def run(name, folder, variable, cache=None, config=lambda: None, **options):
    """Save a model, change its config, and return an engine's results and its output."""
    options = {"prompts": prompts(), **OPTIONS.get(name, {}), **options}
    save(name, folder)
    config()
    done = start_engine(folder, variable, cache, **options)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT ")), done.stdout + done.stderr


def error(name, answers):
    """Return the largest error of the log-probabilities."""
    tokens = [[*prompt, *answer] for prompt, answer in zip(prompts(), answers["tokens"], strict=True)]
    exact = exact_log_probabilities(name, tokens)
    return (torch.tensor(answers["logprobs"], dtype=torch.float64) - exact).abs().max().item()


@pytest.mark.parametrize("name", MODELS)
def test_far_positions_are_right_where_stock_vllm_is_wrong(name, tmp_path):
    stock, _ = run(name, tmp_path, "0", shifts=SHIFTS)
    stock_near, _, stock_far = stock["shifts"].values()
    assert stock["tables"] > 2e8 or name == "glm"
    for mode, tables in ("1", 0), ("tables", stock["tables"]):
        exact, output = run(name, tmp_path, mode, shifts=SHIFTS, report=True)
        assert f"ROPE_ARRAY_VLLM={mode}, rope_array" in output
        assert exact["report"].splitlines()[0] in output
        assert exact["tables"] == tables
        assert re.search("[12] rotary embeddings? by rope_array", exact["report"])
        assert "not by" not in exact["report"]
        near, middle, far = exact["shifts"].values()
        assert stock_near["tokens"] == near["tokens"] == middle["tokens"] == far["tokens"]
        limit = max(4 * error(name, stock_near), 2e-5)
        assert max(error(name, answers) for answers in (near, middle, far)) <= limit
        assert error(name, stock_far) >= 50 * error(name, far)


def test_a_model_may_change_the_pairing_of_its_layers(tmp_path):
    """As ERNIE 4.5 does, after vLLM has made them."""
    stock, _ = run("ernie", tmp_path, "0")
    exact, _ = run("ernie", tmp_path, "1")
    near, stock_near = (answers["shifts"]["0"] for answers in (exact, stock))
    assert near["tokens"] == stock_near["tokens"]
    assert error("ernie", near) <= max(4 * error("ernie", stock_near), 2e-5)


def test_without_the_variable_the_bits_are_of_vllm_without_us(tmp_path, monkeypatch):
    monkeypatch.delenv("ROPE_ARRAY_VLLM", raising=False)
    unset, output = run("llama3", tmp_path, None, shifts=SHIFTS)
    assert "by rope_array" not in output
    monkeypatch.setenv("VLLM_PLUGINS", "")
    assert run("llama3", tmp_path, None, shifts=SHIFTS)[0] == unset


@pytest.mark.parametrize("mode", ["1", "tables"])
def test_compiled_graphs_are_exact_and_not_shared_with_stock_vllm(mode, tmp_path):
    """On the CPU vLLM 0.32.0 saves compiled graphs and fails to read them, stock too: it compiles again."""
    cache = tmp_path / "cache"
    graphs = cache / "torch_compile_cache" / "torch_aot_compile"
    compiled = functools.partial(run, "gemma3", tmp_path, cache=cache, enforce_eager=False, shifts=SHIFTS)
    exact, _ = compiled(mode)
    (ours,) = graphs.iterdir()
    for answers in exact["shifts"].values():
        assert error("gemma3", answers) <= 2e-5
        assert answers["tokens"] == exact["shifts"]["0"]["tokens"]
    stock, _ = compiled("0")
    assert len({*graphs.iterdir()} - {ours}) == 1
    assert error("gemma3", stock["shifts"]["1000000"]) > 1e-3
    assert compiled(mode)[0] == exact
    assert len([*graphs.iterdir()]) == 2


def change_config(folder, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text("utf-8"))
    config["rope_parameters"] |= changes.pop("rope_parameters", {})
    path.write_text(json.dumps(config | changes), "utf-8")


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "compiled"])
def test_a_table_that_is_shorter_than_max_model_len_becomes_longer(eager, tmp_path):
    """Prompts and answers of 52 tokens at positions from 70 on, of a model with 64."""
    config = functools.partial(change_config, tmp_path, max_position_embeddings=64)
    answers, output = run("llama", tmp_path, "tables", config=config, shifts=[70], enforce_eager=eager)
    assert "makes cos_sin_cache of RotaryEmbedding longer: 128 positions" in output
    assert error("llama", answers["shifts"]["70"]) <= 2e-4
    assert answers["tables"] == 128 * 64 * 4


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "compiled"])
def test_chunked_prefill_has_the_same_answers(eager, tmp_path):
    chunked = {"enable_chunked_prefill": True, "max_num_batched_tokens": 16, "max_num_seqs": 4}
    answers, _ = run("llama", tmp_path, "1", shifts=[1_000_000], enforce_eager=eager, **chunked)
    assert error("llama", answers["shifts"]["1000000"]) <= 2e-4


def test_prefix_caching_and_speculation_have_the_same_answers(tmp_path):
    request = {"prompts": prompts() * 2, "prompt_logprobs": False, "max_tokens": 24}
    answer = functools.partial(run, "llama3", tmp_path, "1", **request)
    plain, _ = answer()
    # Two at a time: the last prompts begin when the first are in the cache.
    cached, _ = answer(enable_prefix_caching=True, max_num_seqs=2, block_size=32)
    assert cached["cached_tokens"] > 0 == plain["cached_tokens"]
    assert cached["shifts"] == plain["shifts"]
    speculation = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    speculated, _ = answer(speculative_config=speculation)
    assert speculated["shifts"] == plain["shifts"]


@pytest.mark.parametrize(("mode", "tables"), [("1", 0), ("tables", 4 << 26)], ids=["1", "tables"])
def test_two_tensor_parallel_workers_have_the_same_answers(mode, tables, tmp_path):
    answers, _ = run("llama", tmp_path, mode, shifts=[1_000_000], tensor_parallel_size=2, report=True)
    assert error("llama", answers["shifts"]["1000000"]) <= 2e-4
    assert answers["tables"] == tables
    assert "2 x RotaryEmbedding" in answers["report"]


@pytest.mark.parametrize(
    ("variable", "changes", "message"),
    [
        ("yes", {}, "ROPE_ARRAY_VLLM is 'yes'"),
        ("1", {"use_fope": True}, "does not replace vLLM's FourierRotaryEmbedding: FoPE"),
    ],
    ids=["variable", "FoPE"],
)
def test_the_engine_does_not_start(variable, changes, message, tmp_path):
    change_config(save("llama", tmp_path), rope_parameters=changes)
    done = start_engine(tmp_path, variable, prompts=prompts())
    assert done.returncode != 0
    assert message in done.stdout + done.stderr
    assert "RESULT" not in done.stdout


def test_the_program_of_the_page_prints_the_report(tmp_path):
    page = Path(__file__).parents[2] / "docs" / "in-my-model" / "vllm.md"
    (program,) = re.findall(r"^```python\n(# report\.py\n.*?)^```", page.read_text("utf-8"), re.M | re.S)
    model = (
        f"{str(save('llama', tmp_path))!r}, skip_tokenizer_init=True, max_model_len=128, enforce_eager=True"
    )
    script = tmp_path / "report.py"
    script.write_text(program.replace('"Qwen/Qwen3-0.6B"', model), "utf-8")
    done = start(script, VLLM_CPU_KVCACHE_SPACE="1", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
    assert done.returncode == 0, done.stderr[-4000:]
    report = "1 rotary embedding by rope_array\n  2 x RotaryEmbedding: RoPE(head_dim=64, pairing='half')\n"
    assert done.stdout.endswith(f"{report}    cos_sin_cache: 1,048,576 rows, rounded to bfloat16 (2^-9)\n")
