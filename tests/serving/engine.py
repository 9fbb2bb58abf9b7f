"""Run vLLM's engine once, in a process of its own: `python engine.py FOLDER OPTIONS`, with OPTIONS in JSON.

Prints, for each shift of all positions, the tokens and log-probabilities of each request.
"""

import functools
import json
import os
import sys
import time

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # functions for workers in other processes
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_V1": "1",
}


def shift_positions(amount, model):
    """Add `amount` to the positions that the engine gives the model."""

    def before(_, args, kwargs):
        return args, {**kwargs, "positions": kwargs["positions"] + amount}

    model.shift = model.register_forward_pre_hook(before, with_kwargs=True)


def restore_positions(model):
    model.shift.remove()


def log_probabilities(output):
    """Return the log-probability of each token but the first, prompt and answer."""
    (answer,) = output.outputs
    steps = [*zip(output.prompt_token_ids, output.prompt_logprobs, strict=True)][1:]
    steps += zip(answer.token_ids, answer.logprobs, strict=True)
    return [step[token].logprob for token, step in steps]


def keep_heads(path, model):
    """Save the q and k that the attention of the first layer gets in its next call."""
    import torch

    def before(_, args):
        torch.save(args[:2], path)
        hook.remove()

    attention = next(module for module in model.modules() if hasattr(module, "layer_name"))
    hook = attention.register_forward_pre_hook(before)


def tables(model):
    """Return the bytes of all buffers that hold cos and sin."""
    buffers = {id(buffer): buffer for name, buffer in model.named_buffers() if "cos_sin" in name}
    return sum(buffer.nbytes for buffer in buffers.values())


def tokens_per_second(llm, prompts, max_tokens):
    """Return the new tokens in a second of processor time, which does not count other processes."""
    from vllm import SamplingParams, TokensPrompt

    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, detokenize=False, ignore_eos=True)
    start = time.process_time()
    llm.generate([TokensPrompt(prompt_token_ids=prompt) for prompt in prompts], sampling, use_tqdm=False)
    return len(prompts) * max_tokens / (time.process_time() - start)


def run(
    folder, prompts, shifts=(0,), max_tokens=12, prompt_logprobs=True, report=False, examine=False,
    fingerprint=False, rounds=0, **engine,
):  # fmt: skip
    from vllm import LLM, SamplingParams, TokensPrompt

    import rope_array.vllm

    fixed = {"dtype": "float32", "enforce_eager": True, "enable_prefix_caching": False, "max_model_len": 128}
    llm = LLM(str(folder), skip_tokenizer_init=True, seed=0, **{**fixed, **engine})
    sampling = SamplingParams(
        temperature=0,
        max_tokens=max_tokens,
        logprobs=0,
        prompt_logprobs=0 if prompt_logprobs else None,
        detokenize=False,
        ignore_eos=True,
    )
    answers = {"tables": llm.apply_model(tables)[0], "shifts": {}, "cached_tokens": 0}
    if report:
        answers["report"] = repr(llm.apply_model(rope_array.vllm.report)[0])
    if examine:
        answers["examination"] = str(llm.apply_model(rope_array.vllm.examine)[0])
    if fingerprint:
        answers["fingerprint"] = str(llm.apply_model(rope_array.vllm.fingerprint)[0])
    answers["speed"] = [tokens_per_second(llm, prompts, max_tokens) for _ in range(rounds)]
    for amount in shifts:
        llm.apply_model(functools.partial(shift_positions, amount))
        if fingerprint:
            llm.apply_model(functools.partial(keep_heads, f"{folder}/heads-{amount}.pt"))
        outputs = llm.generate(
            [TokensPrompt(prompt_token_ids=prompt) for prompt in prompts], sampling, use_tqdm=False
        )
        answers["shifts"][amount] = {
            "tokens": [[*output.outputs[0].token_ids] for output in outputs],
            "logprobs": [log_probabilities(output) for output in outputs] if prompt_logprobs else None,
        }
        answers["cached_tokens"] += sum(output.num_cached_tokens or 0 for output in outputs)
        llm.apply_model(restore_positions)
    return answers


if __name__ == "__main__":
    os.environ.update(ENVIRONMENT)
    print("RESULT", json.dumps(run(sys.argv[1], **json.loads(sys.argv[2]))))
