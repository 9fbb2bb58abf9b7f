"""The cases of `bench/speed.py`: shapes, dtypes, pairings, threads and rows."""

from fnmatch import fnmatchcase
from typing import NamedTuple

# Patterns of rows: all; all without torch.compile; the rows of the growth plot.
ALL = ("*",)
NOT_COMPILED = ("*", "-*torch.compile*")
GROWING = (
    "copy*",
    "rope_array NumPy",
    "rope_array NumPy, out=",
    "rope_array PyTorch",
    "rope_array PyTorch, out=",
    "rope_array NumPy, core",
    "transformers Llama",
    "ONNX Runtime, com.microsoft",
    "naive NumPy",
)
# Without the array-api backend and NumPy code, which take ten times as long on the largest arrays.
LARGE = ("*", "-*torch.compile*", "-*core", "-*backend=*", "-naive*")


class Case(NamedTuple):
    """`shape` is (B, H, S, D) or (H, S, D); positions begin with `start`; `threads=None` is all threads."""

    name: str
    group: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    pairing: str = "half"
    start: int = 0
    threads: int | None = 1
    rows: tuple[str, ...] = NOT_COMPILED

    def takes(self, row, selected=ALL):
        """Return whether the case has a row: it matches a pattern, and none that begins with a minus."""
        included = any(fnmatchcase(row, p) for p in self.rows if p[0] != "-")
        excluded = any(fnmatchcase(row, p[1:]) for p in self.rows if p[0] == "-")
        return included and not excluded and any(fnmatchcase(row, p) for p in selected)


def cases(quick=False):
    every = [*_latency(), *_decode(), *_prefill(), *_one_head(), *_long(), *_growth(), *_threads()]
    return [_small(case) for case in every] if quick else every


def _latency():
    yield Case("tiny", "latency", (32, 1, 128), start=4095, rows=ALL)


def _decode():
    for batch in (1, 64):
        for dtype in ("float32", "bfloat16"):
            rows = ALL if dtype == "float32" else NOT_COMPILED
            yield Case(f"decode {batch} {dtype}", "decode", (batch, 32, 1, 128), dtype, start=4095, rows=rows)
        # Interleaved pairs too, for peers without half pairs.
        shape = (batch, 32, 1, 128)
        yield Case(f"decode {batch} float32 interleaved", "decode", shape, pairing="interleaved", start=4095)


def _prefill():
    for pairing in ("half", "interleaved"):
        for dtype in ("float32", "bfloat16", "float16"):
            rows = NOT_COMPILED if dtype == "float16" else ALL
            name = f"prefill 2048 {dtype} {pairing}"
            yield Case(name, "prefill", (1, 32, 2048, 128), dtype, pairing, rows=rows)
    for heads in (1, 8):
        yield Case(f"prefill 2048 float32 half {heads} heads", "heads", (1, heads, 2048, 128))
    for width in (64, 256):
        yield Case(f"prefill 2048 float32 half width {width}", "width", (1, 32, 2048, width))


def _one_head():
    """One head, so that each angle is used once; arrays of 16 MiB in 16 bits, 32 MiB in float32."""
    for pairing in ("half", "interleaved"):
        for dtype in ("float32", "bfloat16", "float16"):
            yield Case(f"one head 65536 {dtype} {pairing}", "one head", (1, 1, 65536, 128), dtype, pairing)


def _long():
    """8 heads, 128 MiB in float32: with 32 heads a case would take minutes."""
    for dtype in ("float32", "bfloat16"):
        yield Case(f"prefill 32768 {dtype} half 8 heads", "long", (1, 8, 32768, 128), dtype, rows=LARGE)


def _growth():
    for power in range(0, 21, 2):
        tokens = 2**power
        rows = GROWING if tokens <= 2**16 else (*GROWING, "-*core")  # core would take seconds
        yield Case(f"growth {tokens}", "growth", (1, 1, tokens, 64), rows=rows)


def _threads():
    """All threads, in a separate process; the same cases as above with one thread."""
    for dtype in ("float32", "bfloat16"):
        name = f"prefill 2048 {dtype} half, all threads"
        rows = ALL if dtype == "float32" else NOT_COMPILED
        yield Case(name, "threads", (1, 32, 2048, 128), dtype, threads=None, rows=rows)
    name = "prefill 2048 float32 interleaved, all threads"
    yield Case(name, "threads", (1, 32, 2048, 128), pairing="interleaved", threads=None)
    name = "prefill 32768 float32 half 8 heads, all threads"
    yield Case(name, "threads", (1, 8, 32768, 128), threads=None, rows=LARGE)
    name = "one head 65536 float32 half, all threads"
    yield Case(name, "threads", (1, 1, 65536, 128), threads=None)
    name = "decode 64 float32, all threads"
    yield Case(name, "threads", (64, 32, 1, 128), start=4095, threads=None)


def _small(case):
    """Return the case with fewer tokens, to try the harness; nothing is compiled."""
    *lead, tokens, width = case.shape
    rows = NOT_COMPILED if case.rows == ALL else case.rows
    return case._replace(shape=(*lead, -(-tokens // 64), width), rows=rows)
