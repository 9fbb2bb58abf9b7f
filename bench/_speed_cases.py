"""The cases of `bench/speed.py`, on the CPU and on a GPU: sizes, dtypes, pairings, directions and rows."""

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import product

# The copies that times are compared with, and PyTorch's clone; on a GPU there is one copy.
INTO, ALLOCATING, CLONE = "copy into existing memory", "copy, allocating", "copy, PyTorch clone"
COPY, OURS, ROTATION = "copy", "rope_array", "rope_array, Rotation"
FORWARD, BACKWARD = "forward", "backward"
DTYPES, PAIRINGS = ("bfloat16", "float32"), ("half", "interleaved")
CPU_DTYPES = ("float32", "bfloat16", "float16")

# Patterns of rows: all; all without torch.compile; the rows of the growth plot.
ALL = ("*",)
NOT_COMPILED = ("*", "-*torch.compile*")
GROWING = (
    *("copy*", "rope_array NumPy", "rope_array NumPy, out=", "rope_array NumPy, core"),
    *("rope_array PyTorch", "rope_array PyTorch, out=", "transformers Llama"),
    *("ONNX Runtime, com.microsoft", "naive NumPy"),
)
# Without the array-api backend and NumPy code, which take ten times as long on the largest arrays.
LARGE = ("*", "-*torch.compile*", "-*core", "-naive*")
ON_GPU = ("*", "-*torch.compile*", "-*backend=*")  # without the rows that take long to prepare


class SpeedCase:
    """A case has a `name`, a `group`, and patterns of `rows`; its other fields are facts of its result."""

    def takes(self, row, selected=ALL):
        """Return whether the case has a row: it matches a pattern, and none that begins with a minus."""
        included = any(fnmatchcase(row, p) for p in self.rows if p[0] != "-")
        excluded = any(fnmatchcase(row, p[1:]) for p in self.rows if p[0] == "-")
        return included and not excluded and any(fnmatchcase(row, p) for p in selected)

    def facts(self):
        return {key: value for key, value in vars(self).items() if key not in ("name", "rows", "threads")}


# ---- on the CPU ----

PREFILL, ONE_HEAD, LONG = (1, 32, 2048, 128), (1, 1, 65536, 128), (1, 8, 32768, 128)


@dataclass(frozen=True)
class CpuCase(SpeedCase):
    """`shape` is (B, H, S, D) or (H, S, D); positions begin with `start`; `threads=None` is all threads."""

    name: str
    group: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    pairing: str = "half"
    start: int = 0
    threads: int | None = 1
    rows: tuple[str, ...] = NOT_COMPILED


def cpu_cases(quick=False):
    """Return the cases; with `quick`, of few tokens, and nothing is compiled."""
    return [_small(case) if quick else case for case in _all_on_cpu()]


def _small(case):
    *lead, tokens, width = case.shape
    rows = NOT_COMPILED if case.rows == ALL else case.rows
    return replace(case, shape=(*lead, -(-tokens // 64), width), rows=rows)


def _all_on_cpu():
    yield CpuCase("tiny", "latency", (32, 1, 128), start=4095, rows=ALL)
    # Interleaved pairs too, for peers without half pairs.
    settings = (
        ("float32", "half", ALL),
        ("bfloat16", "half", NOT_COMPILED),
        ("float32", "interleaved", NOT_COMPILED),
    )
    for batch, (dtype, pairing, rows) in product((1, 64), settings):
        name = f"decode {batch} {dtype}" + f" {pairing}" * (pairing != "half")
        yield CpuCase(name, "decode", (batch, 32, 1, 128), dtype, pairing, start=4095, rows=rows)
    for pairing, dtype in product(PAIRINGS, CPU_DTYPES):
        rows = NOT_COMPILED if dtype == "float16" else ALL
        yield CpuCase(f"prefill 2048 {dtype} {pairing}", "prefill", PREFILL, dtype, pairing, rows=rows)
    for heads in (1, 8):
        yield CpuCase(f"prefill 2048 float32 half {heads} heads", "heads", (1, heads, 2048, 128))
    for width in (64, 256):
        yield CpuCase(f"prefill 2048 float32 half width {width}", "width", (1, 32, 2048, width))
    # One head, so that each angle is used once; arrays of 16 MiB in 16 bits, 32 MiB in float32.
    for pairing, dtype in product(PAIRINGS, CPU_DTYPES):
        yield CpuCase(f"one head 65536 {dtype} {pairing}", "one head", ONE_HEAD, dtype, pairing)
    # 8 heads, 128 MiB in float32: with 32 heads a case would take minutes.
    for dtype in ("float32", "bfloat16"):
        yield CpuCase(f"prefill 32768 {dtype} half 8 heads", "long", LONG, dtype, rows=LARGE)
    for tokens in (2**power for power in range(0, 21, 2)):
        rows = GROWING if tokens <= 2**16 else (*GROWING, "-*core")  # core would take seconds
        yield CpuCase(f"growth {tokens}", "growth", (1, 1, tokens, 64), rows=rows)
    # All threads, in a separate process; the same cases as above with one thread.
    for name, shape, dtype, pairing, rows in (
        ("prefill 2048 float32 half", PREFILL, "float32", "half", ALL),
        ("prefill 2048 bfloat16 half", PREFILL, "bfloat16", "half", NOT_COMPILED),
        ("prefill 2048 float32 interleaved", PREFILL, "float32", "interleaved", NOT_COMPILED),
        ("prefill 32768 float32 half 8 heads", LONG, "float32", "half", LARGE),
        ("one head 65536 float32 half", ONE_HEAD, "float32", "half", NOT_COMPILED),
        ("decode 64 float32", (64, 32, 1, 128), "float32", "half", NOT_COMPILED),
    ):
        start = 4095 if "decode" in name else 0
        yield CpuCase(f"{name}, all threads", "threads", shape, dtype, pairing, start, None, rows)


# ---- on a GPU ----


@dataclass(frozen=True)
class GpuCase(SpeedCase):
    """Arrays of `batch` × `tokens` with `heads` heads each, of q and k; one number of heads is one array.

    `layout` is their order in memory, `direction` the call that is timed: forward, or the backward alone.
    """

    group: str
    batch: int
    tokens: int
    dtype: str
    pairing: str
    direction: str = FORWARD
    layout: str = "bshd"
    heads: tuple[int, ...] = (32, 8)
    head_dim: int = 128
    rows: tuple[str, ...] = ON_GPU

    @property
    def name(self):
        size = f"{self.tokens} tokens" if self.tokens > 1 else f"{self.batch} sequences"
        fields = [self.group, size, f"heads {'+'.join(map(str, self.heads))}", f"width {self.head_dim}"]
        return ", ".join((*fields, self.dtype, self.pairing, self.layout, self.direction))

    @property
    def bytes(self):
        """The bytes of the arrays, which a call reads once; it writes as many."""
        itemsize = 2 if self.dtype == "bfloat16" else 4
        return self.batch * self.tokens * sum(self.heads) * self.head_dim * itemsize

    @property
    def moved(self):
        """The bytes that a call reads and writes."""
        return 2 * self.bytes

    def facts(self):
        return super().facts() | {"bytes": self.bytes}


def gpu_cases(quick=False):
    """Return the cases; with `quick`, a few with every kind of row."""
    return [*(_few_on_gpu() if quick else _all_on_gpu())]


def _few_on_gpu():
    for setting in product(DTYPES, PAIRINGS, (FORWARD, BACKWARD)):
        yield GpuCase("prefill", 1, 8192, *setting)
    yield GpuCase("prefill", 1, 32768, "bfloat16", "half", rows=ALL)
    yield GpuCase("decode", 64, 1, "bfloat16", "half")


def _all_on_gpu():
    settings = [*product(DTYPES, PAIRINGS, (FORWARD, BACKWARD))]
    for tokens, setting in product((1024, 8192, 32768, 131072), settings):
        rows = ALL if tokens == 8192 and setting[1] == "half" else ON_GPU
        yield GpuCase("prefill", 1, tokens, *setting, rows=rows)
    for setting in settings:  # (B, H, S, D)
        yield GpuCase("prefill, heads first", 1, 32768, *setting, layout="bhsd")
    for batch, dtype, pairing in product((1, 8, 64, 512, 4096), DTYPES, PAIRINGS):
        rows = ALL if (batch, dtype, pairing) == (64, "bfloat16", "half") else ON_GPU
        yield GpuCase("decode", batch, 1, dtype, pairing, rows=rows)
    # Tokens in inverse proportion to the width: the arrays have the bytes of 16,384 tokens of 128.
    forward = [*product(DTYPES, PAIRINGS)]
    for width, setting in product((64, 256), forward):
        yield GpuCase("other widths", 1, 16384 * 128 // width, *setting, head_dim=width)
    # One head of k with 32 of q, and a single head, whose angles no other head shares.
    for (heads, tokens), setting in product((((32, 1), 16384), ((1,), 524288)), forward):
        yield GpuCase("fewer heads", 1, tokens, *setting, heads=heads)
