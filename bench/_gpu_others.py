"""The device of bench/gpu_session.py, and its cases of JAX, CuPy, vLLM and the conformance suite."""

import json
import os
import subprocess
import sys
import time
from functools import partial
from importlib.util import find_spec
from itertools import product

import torch
from _harness import in_rounds, spread
from _record import ROOT
from _speed_gpu import BASE, Cuda
from _speed_rounds import Timing

import rope_array as ra
from rope_array.testing._checks import checks

HEADS, WIDTH, LOOPS, ROUNDS = (32, 8), 128, 50, 15


# ---- devices ----


class CpuDevice:
    """The CPU in place of `_speed_gpu.Cuda`, for a dry run: its times have no meaning."""

    device, l2_bytes, memory_bytes = torch.device("cpu"), 1, 2**40

    def facts(self):
        return {"name": "the CPU, in a dry run"}

    def synchronize(self):
        pass

    forget = synchronize

    def time(self, contender, loops, expected):
        begun = time.perf_counter()
        contender()
        took = time.perf_counter() - begun
        return Timing(took, took)

    def graph(self, contender, loops):
        seconds = self.time(contender, loops, 0.0).seconds
        return lambda: seconds

    def launches(self, contender):
        return None


def open_device(dry):
    """Return the GPU; in a dry run the CPU, with a torch.compile that generates no code."""
    torch.set_num_threads(2)  # the steps that compare bits run at once
    if not dry:
        return Cuda()
    compile = torch.compile

    def compile_by_autograd(function, mode=None, **options):
        return compile(function, backend="aot_eager", **options)

    torch.compile = compile_by_autograd
    return CpuDevice()


def device(session):
    yield "facts", session.device.facts


# ---- JAX and CuPy ----


def jax_programs(session):
    import jax

    if not session.dry and jax.default_backend() != "gpu":
        raise ModuleNotFoundError(f"JAX has no GPU: its devices are {jax.devices()}")
    for dtype, direction in product(("bfloat16", "float32"), ("forward", "gradient")):
        for tokens in (32768, 64):
            tokens = min(tokens, 4) if session.dry else tokens
            yield f"{direction}, {dtype}, {tokens} tokens", partial(of_jax, jax, dtype, direction, tokens)


def of_jax(jax, dtype, direction, tokens):
    """Return seconds of q and k in one program, and in the time of `x + 1`."""
    rope, keys = ra.RoPE(WIDTH, base=BASE, pairing="half"), jax.random.split(jax.random.key(0), 2)
    xs = [
        jax.random.normal(key, (1, tokens, n, WIDTH)).astype(dtype)
        for key, n in zip(keys, HEADS, strict=True)
    ]
    pos = jax.numpy.arange(tokens)
    rotate = lambda q, k, pos: rope.apply((q, k), pos, seq_axis=-3)  # noqa: E731
    rotation = rope.rotation(pos, like=xs[0])
    functions = {
        "copy": (lambda q, k, pos: (q + 1, k + 1), pos),
        "rope_array": (rotate, pos),
        "rope_array, Rotation": (lambda q, k, rotation: rotation.apply((q, k), seq_axis=-3), rotation),
        "rope_array, array-api": (partial(by_operations, rope), pos),
    }
    if direction == "gradient":
        ours = ((name, *row) for name, row in functions.items() if name != "copy")
        functions |= {name: (partial(pulled_back, jax, f), source) for name, f, source in ours}
    calls = {name: partial(jax.jit(f), *xs, source) for name, (f, source) in functions.items()}
    for call in calls.values():
        jax.block_until_ready(call())
    timers = {name: partial(seconds_of, call, jax.block_until_ready) for name, call in calls.items()}
    return {"rows": in_copies(in_rounds(timers, ROUNDS))}


def by_operations(rope, q, k, pos):
    return rope.apply((q, k), pos, seq_axis=-3, backend="array-api")


def pulled_back(jax, function, q, k, source):
    """Return the gradients for incoming gradients q and k."""
    return jax.vjp(lambda *xs: function(*xs, source), q, k)[1]((q, k))


def seconds_of(call, wait):
    """Return the seconds of one of several calls, until the last has ended."""
    begun = time.perf_counter()
    for _ in range(LOOPS):
        result = call()
    wait(result)
    return (time.perf_counter() - begun) / LOOPS


def in_copies(times):
    ratios = {name: [a / b for a, b in zip(times[name], times["copy"], strict=True)] for name in times}
    return {name: {"seconds": spread(times[name]), "copies": spread(ratios[name])} for name in times}


def cupy_host(session):
    import cupy

    for tokens, dtype in product((1, 64), ("float32", "float16")):
        yield f"{tokens} tokens, {dtype}", partial(of_cupy, cupy, tokens, dtype)


def of_cupy(cupy, tokens, dtype):
    """Return the host's seconds of small calls."""
    q, k = (cupy.random.standard_normal((1, tokens, n, WIDTH)).astype(dtype) for n in HEADS)
    rope, pos = ra.RoPE(WIDTH, base=BASE, pairing="half"), cupy.arange(tokens)
    rotation = rope.rotation(pos, like=q)
    calls = {
        "copy": lambda: (q.copy(), k.copy()),
        "rope_array": lambda: rope.apply((q, k), pos, seq_axis=-3),
        "rope_array, out=x": lambda: rope.apply((q, k), pos, seq_axis=-3, out=(q, k)),
        "rope_array, Rotation": lambda: rotation.apply((q, k), seq_axis=-3),
        "rope_array, one array": lambda: rope.apply(q, pos, seq_axis=-3),
    }
    for call in calls.values():
        call()
    timers = {name: partial(seconds_of, call, lambda result: None) for name, call in calls.items()}
    return {"rows": in_copies(in_rounds(timers, ROUNDS))}


# ---- the suite, and vLLM ----


def check(session, name):
    yield name, partial(checked, "torch" if session.dry else "torch:cuda", name)


def check_compiled(session, part, parts):
    """Run every check of a part, one after another, as long as there is time."""
    names = list(dict.fromkeys(check.name.partition("[")[0] for check in checks()))[part - 1 :: parts]
    target = "torch:compile" if session.dry else "torch:cuda:compile"
    for name in names[:1] if session.dry else names:
        yield name, partial(checked, target, name)


def checked(target, name):
    command = [sys.executable, "-m", "rope_array", "check", target, "--json", "--only", name]
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    options = {"capture_output": True, "text": True, "check": False}
    done = subprocess.run(command, cwd=ROOT, env=environment, **options)
    if not done.stdout:
        raise RuntimeError(f"exit status {done.returncode}: {done.stderr[-300:]}")
    report = json.loads(done.stdout)
    if not report["ok"]:
        wrong = [result["detail"] for result in report["results"] if result["outcome"] == "failed"]
        return {"failed": "; ".join(wrong)[:2000], "counts": report["counts"]}
    return {"counts": report["counts"]}


def vllm_layers(session):
    """Run the tests of vLLM's layers, if it is installed."""
    if find_spec("vllm") is None:
        raise ModuleNotFoundError("No module named 'vllm'")
    yield "tests/serving/test_layers.py", partial(tested, "tests/serving/test_layers.py")


def tested(path):
    command = [sys.executable, "-m", "pytest", "-q", "--serving", "--libraries", "numpy,torch", path]
    done = subprocess.run([*command, "-W", "default"], cwd=ROOT, capture_output=True, text=True, check=False)
    last = done.stdout.strip().rpartition("\n")[2]
    return {"result": last} if done.returncode == 0 else {"failed": done.stdout[-2000:]}
