"""Reinforcement learning: a trainer in PyTorch and an engine, vLLM, whose log-probabilities must agree.

    python docs/examples/reinforcement.py [bfloat16]

A tiny Llama with random weights answers in vLLM, in a process of its own, and is trained by policy gradients
in this one. Prints the largest difference between their log-probabilities of the sampled tokens, with
rope_array in neither, in one and in both; then trains with the guard, which finds a planted fault. It needs
vLLM: see "Try it on the CPU" in docs/in-my-model/vllm.md.
"""

import multiprocessing
import os
import sys
import tempfile
from contextlib import contextmanager
from functools import partial

import torch
import transformers

import rope_array as ra

FAR, PROMPT, ANSWER = 100_000, 8, 24
CONFIG = transformers.LlamaConfig(
    hidden_size=256, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, vocab_size=128,
    initializer_range=0.16, max_position_embeddings=131_072,
)  # fmt: skip
ENVIRONMENT = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
ENVIRONMENT |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}

# ---- the engine ----


def serve(folder, dtype, connection):
    """Answer the trainer's requests, in the engine's process."""
    from vllm import LLM

    options = {"enforce_eager": True, "skip_tokenizer_init": True, "enable_prefix_caching": False}
    llm = LLM(folder, dtype=dtype, max_model_len=PROMPT + ANSWER, **options)
    for function, *arguments in iter(connection.recv, None):
        connection.send(function(llm, *arguments))


def sample(llm, prompts, start):
    """Return an answer to each prompt, at positions from `start` on, and the log-probabilities."""
    from vllm import SamplingParams, TokensPrompt

    llm.apply_model(partial(start_at, start))
    sampling = SamplingParams(max_tokens=ANSWER, logprobs=0, ignore_eos=True, detokenize=False)
    requests = [TokensPrompt(prompt_token_ids=prompt) for prompt in prompts.tolist()]
    answers = [request.outputs[0] for request in llm.generate(requests, sampling, use_tqdm=False)]
    steps = [zip(answer.token_ids, answer.logprobs, strict=True) for answer in answers]
    log_probs = [[step[token].logprob for token, step in answer] for answer in steps]
    return torch.tensor([answer.token_ids for answer in answers]), torch.tensor(log_probs)


def start_at(start, model):
    """Let positions begin at `start`, as after a long text."""

    def before(_, args, kwargs):
        return args, {**kwargs, "positions": kwargs["positions"] + start}

    if hasattr(model, "starting"):
        model.starting.remove()
    model.starting = model.register_forward_pre_hook(before, with_kwargs=True)


def update(llm):
    """Load the weights that the trainer has saved; return the fingerprint of the rotation as it is now."""
    llm.collective_rpc("reload_weights")
    return llm.apply_model(ra.vllm.fingerprint)[0]


@contextmanager
def engine(folder, dtype, mode):
    """Start vLLM with ROPE_ARRAY_VLLM=mode; yield a function that sends it a request."""
    os.environ.update(ENVIRONMENT, ROPE_ARRAY_VLLM=mode)
    context = multiprocessing.get_context("spawn")
    connection, engine_connection = context.Pipe()
    process = context.Process(target=serve, args=(folder, dtype, engine_connection))
    process.start()
    engine_connection.close()  # so that recv raises EOFError if the engine ends

    def ask(*request):
        connection.send(request)
        return connection.recv()

    yield ask
    connection.send(None)
    process.join()


# ---- the trainer ----


def load(folder, dtype, **changes):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), **changes)


def log_probabilities(model, prompts, answers, start):
    """Return the trainer's log-probability of each token of the answers."""
    tokens = torch.cat([prompts, answers], dim=1)
    pos = torch.arange(tokens.shape[1]).add(start).expand(tokens.shape)
    logits = model(tokens, position_ids=pos).logits[:, PROMPT - 1 : -1]
    return logits.float().log_softmax(-1).gather(-1, answers[..., None])[..., 0]


def compare(models, ask, prompts, mode):
    """Print the largest differences of log-probabilities, from position 0 on and from FAR on."""
    for name, model in models.items():
        where = " and ".join(filter(None, [name, "engine" * mode])) or "neither"
        print(f"rope_array in {where:18}", *(f"{off(model, ask, prompts, n):.0e}" for n in (0, FAR)))


def off(model, ask, prompts, start):
    answers, theirs = ask(sample, prompts, start)
    with torch.no_grad():
        return (log_probabilities(model, prompts, answers, start) - theirs).abs().max().item()


def train(model, ask, prompts, folder, steps=4):
    """Train by policy gradients, with the guard: even tokens are rewarded."""
    mine = ra.hf.fingerprint(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(steps):
        mine.check(ask(update))  # raises FingerprintError with the reason
        answers, theirs = ask(sample, prompts, FAR)
        ours = log_probabilities(model, prompts, answers, FAR)
        reward = (answers % 2 == 0).float()
        print(f"step {step}: reward {reward.mean():.2f}, difference {(ours - theirs).abs().max():.0e}")
        optimizer.zero_grad()
        (-(reward - reward.mean()) * ours).mean().backward()
        optimizer.step()
        model.save_pretrained(folder)


def main(folder, dtype):
    torch.manual_seed(0)
    prompts = torch.randint(3, CONFIG.vocab_size, (32, PROMPT))
    transformers.LlamaForCausalLM(CONFIG).save_pretrained(folder)
    models = {"": load(folder, dtype), "trainer": load(folder, dtype)}
    ra.hf.patch(models["trainer"])
    with engine(folder, dtype, "0") as ask:
        compare(models, ask, prompts, 0)
    with engine(folder, dtype, "1") as ask:
        compare(models, ask, prompts, 1)
        train(models["trainer"], ask, prompts, folder)
        theirs = ask(update)
    fault = load(folder, dtype, rope_parameters={"rope_type": "default", "rope_theta": 500_000.0})
    ra.hf.patch(fault)
    try:
        ra.hf.fingerprint(fault).check(theirs)
    except ra.FingerprintError as error:
        print("planted fault:", error)


if __name__ == "__main__":
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        main(folder, (sys.argv[1:] or ["float32"])[0])
