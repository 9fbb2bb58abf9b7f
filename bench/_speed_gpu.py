"""The CUDA device of `bench/speed.py --gpu` as a clock, and the arrays and the calls of a case on it."""

import math
import shutil
import subprocess
import time
from functools import cached_property, partial

import torch
from _harness import in_rounds, one_line, spread
from _speed_cases import COPY, FORWARD, OURS
from _speed_rounds import Pace, Timing, ratios, run, some
from peers._timed import NotServedError, Rotate

import rope_array as ra

BASE = 500_000.0
COVER = 3  # the bytes of all sets, in sizes of the L2
SETS = 256  # at most
FIRST, STEP, FURTHEST = 4095, 17, 131072  # positions of decoding: the first, and from sequence to sequence
SHORTEST = 2e-3  # seconds on the device of one timing; shorter calls are repeated
LOOPS = 200  # calls of one timing, at most
QUEUE = 800  # launches that wait on a stream: from about 1,024 on, the driver blocks the host
LAUNCHES = 16  # of a call, if they could not be counted
REPLAYS = 7  # of a CUDA graph
AHEAD = 200e-6  # seconds for which the GPU sleeps in addition to the host's estimated time
SMI = {
    "driver": "driver_version",
    "power limit, W": "power.limit",
    "SM clock, MHz": "clocks.sm",
    "memory clock, MHz": "clocks.mem",
    "largest SM clock, MHz": "clocks.max.sm",
    "largest memory clock, MHz": "clocks.max.mem",
    "temperature, °C": "temperature.gpu",
}
# Records of the profiler that are no work of the GPU.
NOT_WORK = (
    *("Activity Buffer Request", "Context Sync", "Event Sync"),
    *("Stream Sync", "Stream Wait Event", "cuda"),
)


def results(chosen, device, options):
    """Yield the name and the numbers of each case."""
    for case in chosen:
        numbers = run(case, partial(GpuTrial, device=device), options.rows, options.quick)
        device.forget()
        yield case.name, numbers


class GpuTrial:
    """Tensors of a case on a device, which peers take, and the calls of its rows.

    `xs` has a tuple of tensors for each set, `gs` the gradients of the results. Positions are (S,), or (B,
    1) in decoding, int64 on the device.
    """

    entry = "on_gpu"  # of a module of bench/peers: the function that returns its rows
    peers = ("own", "flash_attention", "liger", "flashinfer", "vllm", "huggingface")
    copies = (("copies", COPY),)
    seconds, rounds = (0.4, 0.2), ((7, 41), (3, 5))  # of timing for a case: whole, quick
    cover = COVER

    def __init__(self, case, device):
        self.case, self.device = case, device
        # Inputs, and copies and results of the rows.
        needed = (4 + 6 * (1 + (case.direction != FORWARD))) * max(case.bytes, self.cover * device.l2_bytes)
        if needed > 0.9 * device.memory_bytes:
            raise MemoryError(f"needs about {needed / 1e9:.0f} GB of memory")
        self.count = max(1, min(SETS, math.ceil(self.cover * device.l2_bytes / case.bytes)))
        self.inverse = case.direction != FORWARD  # without an amplitude the gradient is the inverse
        self.seq_axis = -3 if case.layout == "bshd" else -2
        self.rope = ra.RoPE(case.head_dim, base=BASE, pairing=case.pairing)
        self._random = torch.Generator(device.device).manual_seed(0)
        self.xs = [self._normal() for _ in range(self.count)]
        self.gs = [self._normal() for _ in range(self.count)] if self.inverse else []

    def _normal(self):
        """Return standard normal tensors, generated in their own dtype to spare memory."""
        case, options = self.case, {"generator": self._random, "device": self.device.device}
        middles = [(case.tokens, n) if case.layout == "bshd" else (n, case.tokens) for n in case.heads]
        shapes = ((case.batch, *middle, case.head_dim) for middle in middles)
        return tuple(torch.randn(shape, dtype=getattr(torch, case.dtype), **options) for shape in shapes)

    @property
    def is_captured(self):
        """Whether calls are also timed in a CUDA graph."""
        return self.case.group == "decode"

    @cached_property
    def pos(self):
        if self.case.tokens > 1:
            return torch.arange(self.case.tokens, device=self.device.device)
        return ((FIRST + STEP * torch.arange(self.case.batch)) % FURTHEST)[:, None].to(self.device.device)

    @cached_property
    def flat_pos(self):
        """The position of each token of (B S, H, D)."""
        return self.pos.expand(self.case.batch, self.case.tokens).flatten()

    def rotation(self):
        return self.rope.rotation(self.pos, like=self.xs[0][0])

    def token_tables(self):
        """Return cos and sin of each token as in transformers' models: (1 or B, S, D), in x's dtype."""
        tables = self.rotation().full_width(self.xs[0][0].dtype)
        return tuple(table if table.ndim == 3 else table[None] for table in tables)

    def half_tables(self):
        """Return cos and sin of the positions from 0 on: (positions, D / 2), in x's dtype."""
        like, end = self.xs[0][0], FURTHEST if self.case.tokens == 1 else self.case.tokens
        rotation = self.rope.rotation(torch.arange(end, device=like.device), like=like)
        return tuple(table.to(like.dtype) for table in rotation)

    def only(self, pairing):
        if self.case.pairing != pairing:
            raise NotServedError(f"{pairing} pairs alone")

    def only_q_and_k(self):
        if len(self.case.heads) != 2:
            raise NotServedError("takes q and k together")

    # ---- the layouts that implementations take ----

    def view(self, x, layout):
        """Return a view of x in another order of axes."""
        if layout == self.case.layout:
            return x
        if layout != "tokens":
            return x.transpose(1, 2)
        tokens = self.view(x, "bshd").flatten(0, 1)
        if tokens.data_ptr() != x.data_ptr():
            raise NotServedError("takes the tokens of all sequences in one axis, which this order has not")
        return tokens

    def back(self, y, layout):
        """Return a view of a result in the case's order of axes."""
        if layout == "tokens":
            return self.back(y.unflatten(0, (self.case.batch, self.case.tokens)), "bshd")
        return y if layout == self.case.layout else y.transpose(1, 2)

    # ---- rows: prepared, judged, timed ----

    def copy_rows(self):
        return {COPY: lambda: Rotate(copy, self.case.layout)}

    def contender(self, name, make):
        rotate = make()
        return Contender(name, calls_of(rotate, self), rotate.layout, rotate.graph)

    def results(self, contender):
        """Yield x, the result and positions of some tokens or sequences, as float32 (B, H, S, D).

        The first and the last set are called once, before the timing: a row that rotates in place has rotated
        its copies once.
        """
        axis, size = (0, self.case.batch) if self.case.tokens == 1 else (2, self.case.tokens)
        chosen = torch.from_numpy(some(size)).to(self.device.device)
        for number in {0, self.count - 1}:
            for x, y in zip((self.gs or self.xs)[number], contender.calls[number](), strict=True):
                pair = self.view(x, "bhsd"), self.view(self.back(y, contender.layout), "bhsd")
                arrays = (tensor.detach().index_select(axis, chosen).float().cpu().numpy() for tensor in pair)
                yield (*arrays, self.pos[chosen].cpu().numpy())

    def pace(self, contender):
        """Count the launches of a call, and choose how many calls one timing has."""
        for _ in range(3):  # a mode of torch.compile may capture a CUDA graph
            contender()
        contender.launched = self.device.launches(contender)
        self.device.synchronize()
        first = self.device.time(contender, 5, 1e-3)
        fit = QUEUE // (len(contender.launched) if contender.launched else LAUNCHES)
        loops = max(1, min(LOOPS, fit, math.ceil(SHORTEST / max(first.seconds, 1e-9))))
        return Pace(loops, loops * (first.seconds + 2 * first.host), first.host)

    def time(self, contender, pace):
        return self.device.time(contender, pace.loops, pace.call)

    def finish(self, rows, contenders, times):
        """Add the numbers that only a GPU has to the rows; return the facts of the case."""
        for name, timings in times.items():
            row = rows[name]
            row["TB/s"] = float(f"{self.case.moved / row['seconds'][1] / 1e12:.4g}")
            row |= facts_of_row(contenders[name], timings)
        if self.is_captured:
            self.add_graphs(contenders, rows)
        if OURS in times:
            peers = {name: timing for name, timing in times.items() if name != OURS}
            rows[OURS]["against"] = {name: ratios(times[OURS], timing) for name, timing in peers.items()}
        xs = tuple(x.detach().requires_grad_(self.inverse) for x in self.xs[0])
        served = ra.explain(xs, self.pos, self.rope, seq_axis=self.seq_axis)
        beyond_l2 = self.count * self.case.bytes >= 2 * self.device.l2_bytes
        return {"sets": self.count, "beyond_l2": beyond_l2, "backend": served.backend}

    def add_graphs(self, contenders, rows):
        """Add the time of a call in a replayed CUDA graph to each row."""
        replays = {}
        for name, contender in contenders.items():
            if contender.can_capture:
                try:
                    replays[name] = self.device.graph(contender, min(LOOPS, len(contender.calls)))
                except Exception as error:  # a call that a graph cannot capture has no such time
                    rows[name]["graph failed"] = one_line(error)
        for name, seconds in in_rounds(replays, REPLAYS).items():
            rows[name]["graph"] = spread(seconds)
            contenders[name].forget()


def facts_of_row(contender, timings):
    """Return the host's time of a row, whether the GPU ever waited for it, and the launches of a call."""
    launched = contender.launched
    return {
        "host": spread([timing.host for timing in timings]),
        "ahead": all(timing.ahead for timing in timings),
        "launches": len(launched) if launched else None,
        "kernels": [kernel[:80] for kernel in launched or ()][:4],
    }


# ---- the device ----


class Cuda:
    """The current CUDA device. A test passes another object with these attributes and methods."""

    def __init__(self):
        if not torch.cuda.is_available():
            raise OSError(f"PyTorch {torch.__version__} finds no CUDA device")
        self.device = torch.device("cuda", torch.cuda.current_device())
        self._known = torch.cuda.get_device_properties(self.device)
        self.l2_bytes = self._known.L2_cache_size
        self.memory_bytes = self._known.total_memory
        # A clock in kHz; 2 GHz is more than any has, so that a sleep is too long rather than too short.
        self._clock = 1e3 * (getattr(self._known, "clock_rate", 0) or 2e6)
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def facts(self):
        """Return what a reader needs to know of the device."""
        properties = self._known
        return {
            "name": properties.name,
            "compute capability": f"{properties.major}.{properties.minor}",
            "memory, GB": round(properties.total_memory / 1e9, 1),
            "SMs": properties.multi_processor_count,
            "L2, MiB": round(properties.L2_cache_size / 2**20, 1),
            "CUDA of PyTorch": torch.version.cuda,
            **self._nvidia_smi(),
        }

    def _nvidia_smi(self):
        """Return the driver and the clocks; nothing if nvidia-smi is missing or knows another set of GPUs."""
        if not (program := shutil.which("nvidia-smi")):
            return {}
        command = [program, f"--query-gpu={','.join(SMI.values())}", "--format=csv,noheader,nounits"]
        command.append(f"--id=GPU-{self._known.uuid}")
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        values = [value.strip() for value in done.stdout.strip().split(",")]
        return dict(zip(SMI, values, strict=True)) if len(values) == len(SMI) else {}

    def synchronize(self):
        torch.cuda.synchronize()

    def forget(self):
        """Return unused memory to the driver."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def time(self, contender, loops, expected):
        """Return the seconds of one of `loops` calls; `expected` is the host's time of a call, about.

        The device sleeps while the host enqueues all calls, so that it then runs them without a pause: the
        time between the events is the device's own. If it wakes before the last call, it sleeps longer and
        all is repeated.
        """
        sleep = AHEAD + 2 * expected * loops
        for _ in range(4):
            torch.cuda._sleep(int(sleep * self._clock))
            self._start.record()
            begun = time.perf_counter()
            for _ in range(loops):
                contender()
            host = time.perf_counter() - begun
            ahead = not self._start.query()
            self._end.record()
            self._end.synchronize()
            if ahead:
                break
            sleep = 2 * max(sleep, host)
        return Timing(self._start.elapsed_time(self._end) * 1e-3 / loops, host / loops, ahead)

    def graph(self, contender, loops):
        """Capture `loops` calls in a CUDA graph. Return a function: the seconds of one call in a replay."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                contender()
        torch.cuda.current_stream().wait_stream(side)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            for _ in range(loops):
                contender()
        captured.replay()

        def replay():
            torch.cuda._sleep(int(AHEAD * self._clock))
            self._start.record()
            captured.replay()
            self._end.record()
            self._end.synchronize()
            return self._start.elapsed_time(self._end) * 1e-3 / loops

        return replay

    def launches(self, contender):
        """Return the names of the kernels and copies that one call starts, by PyTorch's profiler.

        None if the profiler sees none, as where the system forbids it.
        """
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        self.synchronize()
        with torch.profiler.profile(activities=activities) as profile:
            contender()
            self.synchronize()
        on_device = (e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA)
        started = [e.name for e in on_device if not getattr(e, "is_user_annotation", False)]
        return [name for name in started if not name.startswith(NOT_WORK)] or None


# ---- contenders ----


class Contender:
    """The calls of one row, one for each set of inputs; calling it runs the next one.

    The last result of each set stays in memory, so that a call writes where no recent call has written. One
    set alone is larger than the L2: its result is dropped.
    """

    def __init__(self, name, calls, layout, graph):
        self.name, self.calls, self.layout, self.can_capture = name, calls, layout, graph
        self.launched = None
        self._next, self._kept = 0, [None] * len(calls)

    def __call__(self):
        number = self._next
        self._next = (number + 1) % len(self.calls)
        y = self.calls[number]()
        if len(self.calls) > 1:
            self._kept[number] = y
        return y

    def forget(self):
        self._kept = [None] * len(self.calls)


def copy(xs):
    return tuple(torch.empty_like(x).copy_(x) for x in xs)


def calls_of(rotate, trial):
    """Return a call without arguments for each set, in the case's direction."""
    direction = trial.case.direction
    if rotate.function is copy:
        return [partial(copy, xs) for xs in trial.gs or trial.xs]
    if direction == FORWARD:
        return [partial(rotate.function, own(xs, rotate, trial)) for xs in trial.xs]
    if not rotate.gradient:
        raise NotServedError("has no backward")
    sets = zip(trial.xs, trial.gs, strict=True)
    pairs = ((own(xs, rotate, trial), own(gs, rotate, trial)) for xs, gs in sets)
    return [gradient(rotate.function, *pair) for pair in pairs]


def own(xs, rotate, trial):
    """Return tensors in the layout of a row; copies of them if it writes into its arguments."""
    return tuple(trial.view(x.clone() if rotate.in_place else x, rotate.layout) for x in xs)


def gradient(function, xs, gs):
    """Return a call of the backward alone, whose forward is done here."""
    leaves = tuple(x.detach().requires_grad_() for x in xs)
    ys = function(leaves)
    return lambda: torch.autograd.grad(ys, leaves, gs, retain_graph=True)
