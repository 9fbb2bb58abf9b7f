"""bench/gpu.py on a fake device: CPU tensors, and a clock that only the calls move.

The clock makes every number known before the run, so the tests compare with exact medians and ratios. No
number here is a measured time.
"""

import json
import sys
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import child
import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "bench"))

import _gpu_device
import _gpu_table
import _gpu_turns
import gpu
from _gpu_cases import BACKWARD, BOTH, COPY, DTYPES, FORWARD, OURS, PAIRINGS, ROTATION, Case, cases
from _gpu_device import Timing
from _gpu_inputs import Inputs
from _gpu_verdicts import COPIES, KERNELS, LARGE, MET, MISSED, OPEN, verdicts
from peers import flash_attention, flashinfer, huggingface, liger, own, vllm
from peers._timed import NotServedError, Rotate

import rope_array as ra

pytestmark = pytest.mark.library("torch")

ROOT = Path(__file__).parents[1]
FLASH, LIGER = KERNELS
BANDWIDTH = 1e12  # bytes per second of the fake device
HOST = 1e-5  # seconds of the fake host for one call
L2 = 2**16


class FakeDevice:
    """A device whose copies take their bytes ÷ BANDWIDTH, and other rows `factors` times as long.

    Every second timing takes twice as long, for all rows, as if the clock of a GPU changed.
    """

    l2_bytes, memory_bytes = L2, 2**40
    device = torch.device("cpu")

    def __init__(self, factors=None, launched=None):
        self.factors, self.launched = factors or {}, launched or {}
        self.calls, self.rounds, self.forgotten = {}, {}, 0

    def facts(self):
        return {"name": "fake device", "SMs": 1, "L2, MiB": L2 / 2**20}

    def synchronize(self):
        pass

    def forget(self):
        self.forgotten += 1

    def seconds(self, contender):
        result = contender()
        moved = 2 * sum(y.numel() * y.element_size() for y in result)
        return moved / BANDWIDTH * self.factors.get(contender.name, 1)

    def time(self, contender, loops, expected):
        name = contender.name
        self.calls[name] = self.calls.get(name, 0) + loops
        self.rounds[name] = self.rounds.get(name, 0) + 1
        return Timing(self.seconds(contender) * (1 + self.rounds[name] % 2), HOST, True)

    def graph(self, contender, loops):
        seconds = self.seconds(contender)
        return lambda: seconds

    def launches(self, contender):
        count = self.launched.get(contender.name, 1)
        return [f"kernel of {contender.name}"] * count if count else None


def rotated(inputs, xs):
    """Rotate (B, S, H, D) by the tables of the inputs, as another implementation would."""
    cos, sin = (table[:, :, None] for table in inputs.token_tables())

    def one(x):
        if inputs.case.pairing == "half":
            left, right = x.chunk(2, dim=-1)
            return x * cos + torch.cat((-right, left), -1) * sin
        left, right = x[..., ::2], x[..., 1::2]
        return x * cos + torch.stack((-right, left), -1).flatten(-2) * sin

    return tuple(one(x) for x in xs)


def peer(name, make=None, reason=None):
    """Return a module of a peer that rotates by tables, or by the `Rotate` that `make(inputs)` returns."""
    make = make or (lambda inputs: Rotate(lambda xs: rotated(inputs, xs)))
    return SimpleNamespace(available=lambda: reason, on_gpu=lambda inputs: {name: lambda: make(inputs)})


OWN = SimpleNamespace(available=own.available, on_gpu=lambda inputs: without_cupy(own.on_gpu(inputs)))


def without_cupy(rows):
    return {name: make for name, make in rows.items() if "CuPy" not in name}


def small(**fields):
    return Case(**{"group": "prefill", "batch": 1, "tokens": 64, "dtype": "float32", "pairing": "half",
                   "heads": (4, 2), "head_dim": 16, **fields})  # fmt: skip


def run(case, *modules, device=None, rounds=(3, 5), budget=1e-3):
    named = {str(number): module for number, module in enumerate(modules)}
    return _gpu_turns.run(case, device or FakeDevice(), named, budget, rounds)


# ---- cases ----


def test_names_of_cases_differ():
    every = cases()
    assert len({case.name for case in every}) == len(every)
    assert {case.tokens for case in every if case.group == "prefill"} >= {1024, 131072}
    assert {case.batch for case in every if case.group == "decode"} == {1, 8, 64, 512, 4096}


@pytest.mark.parametrize("quick", [False, True], ids=["all", "quick"])
def test_every_target_has_cases(quick):
    """A result with our row at 1 copy in every case leaves no target without a verdict."""
    ratios = [1.0, 1.0, 1.0]
    row = {"seconds": ratios, "copies": ratios, "launches": 1}
    row["against"] = dict.fromkeys((FLASH, LIGER, ROTATION), ratios)
    numbers = {
        case.name: {**case._asdict(), "bytes": case.bytes, "rows": {OURS: row}} for case in cases(quick)
    }
    assert {each["verdict"] for each in verdicts(numbers)} == {MET}


def test_bytes_of_a_case():
    case = Case("prefill", 1, 4096, "bfloat16", "half")
    assert case.bytes == 4096 * 40 * 128 * 2
    assert case.moved == 2 * case.bytes > LARGE


# ---- one case ----


@pytest.mark.parametrize("direction", [FORWARD, BACKWARD, BOTH])
@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("pairing", PAIRINGS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_our_rows_are_right_in_every_case(dtype, pairing, layout, direction):
    found = run(small(dtype=dtype, pairing=pairing, layout=layout, direction=direction), OWN)["rows"]
    names = {COPY, OURS, ROTATION} | ({"rope_array, out=x"} if direction == FORWARD else set())
    assert {name for name, row in found.items() if "seconds" in row} == names
    assert found[OURS]["error"] <= _gpu_turns.OURS_WRONG[dtype]
    assert found.get("rope_array, out=x", {}).get("not served") == (
        None if direction == FORWARD else "has no backward"
    )


@pytest.mark.parametrize("batch", [1, 5])
def test_decoding_takes_a_position_for_each_sequence_and_has_graphs(batch):
    case = small(group="decode", batch=batch, tokens=1)
    assert Inputs(case, FakeDevice()).pos.tolist() == [[4095 + 17 * place] for place in range(batch)]
    found = run(case, OWN, peer(FLASH))["rows"]
    for name in (COPY, OURS, ROTATION, FLASH):
        assert found[name]["graph"] == pytest.approx([2 * case.bytes / BANDWIDTH] * 3)


def test_numbers_of_a_row():
    device = FakeDevice({OURS: 1.25, FLASH: 1.5}, {COPY: 2})
    case = small()
    found = run(case, OWN, peer(FLASH), device=device)
    ours, copied = found["rows"][OURS], found["rows"][COPY]
    # Rounds take once or twice the time of a copy; their number is even or odd, and the ratio is the same.
    assert copied["seconds"][0] == pytest.approx(2 * case.bytes / BANDWIDTH, rel=1e-3)
    assert ours["copies"] == [1.25] * 3
    assert ours["against"][FLASH] == pytest.approx([1.25 / 1.5] * 3, rel=1e-3)
    assert ours["against"][ROTATION] == [1.25] * 3
    assert ours["TB/s"] == pytest.approx(2 * case.bytes / ours["seconds"][1] / 1e12, rel=1e-3)
    assert ours["host"] == [HOST] * 3
    assert (ours["launches"], copied["launches"]) == (1, 2)
    assert 3 <= ours["rounds"] <= 5
    assert found["rows"][FLASH]["kernels"] == [f"kernel of {FLASH}"]
    assert device.forgotten == 1


def test_both_directions_are_divided_by_two_copies():
    case = small(direction=BOTH)
    found = run(case, OWN, device=FakeDevice({OURS: 2}))["rows"]
    assert found[OURS]["copies"] == [2.0] * 3
    contender = _gpu_turns.calls_of(Rotate(_gpu_turns.copy, "bshd"), Inputs(case, FakeDevice()))[0]
    assert len(contender()) == 2


def test_all_sets_together_exceed_the_l2():
    case = small()
    inputs = Inputs(case, FakeDevice())
    assert inputs.count == -(-3 * L2 // case.bytes)
    assert inputs.beyond_l2
    starts = [x.data_ptr() for xs in inputs.xs for x in xs]
    assert len(set(starts)) == 2 * inputs.count
    device = FakeDevice()
    device.l2_bytes = 2**20
    assert not Inputs(small(tokens=1, batch=1, group="decode"), device).beyond_l2
    assert Inputs(small(tokens=1024), FakeDevice()).count == 1


def test_a_contender_takes_the_sets_in_turn_and_keeps_their_results():
    calls = [lambda number=number: [number] for number in range(3)]
    contender = _gpu_turns.Contender("x", calls, "bshd")
    assert [contender() for _ in range(4)] == [[0], [1], [2], [0]]
    assert contender._kept == [[0], [1], [2]]
    alone = _gpu_turns.Contender("x", calls[:1], "bshd")
    alone()
    assert alone._kept == [None]


def test_short_calls_are_repeated_within_the_queue_of_the_device():
    device = FakeDevice(launched={OURS: 100, ROTATION: 0})
    found = run(small(), OWN, device=device)["rows"]
    assert found[OURS]["loops"] == _gpu_device.QUEUE // 100
    assert found[ROTATION]["loops"] == _gpu_device.QUEUE // _gpu_turns.LAUNCHES
    assert found[ROTATION]["launches"] is None
    assert found[COPY]["loops"] == _gpu_turns.LOOPS


@pytest.mark.parametrize(("layout", "grouped"), [("bshd", "bhsd"), ("bshd", "tokens"), ("bhsd", "tokens")])
def test_rows_get_views_in_their_layout(layout, grouped):
    inputs = Inputs(small(layout=layout), FakeDevice())
    x = inputs.xs[0][0]
    view = inputs.view(x, grouped)
    assert view.data_ptr() == x.data_ptr()
    assert view.shape == {"bhsd": (1, 4, 64, 16), "tokens": (64, 4, 16)}[grouped]
    torch.testing.assert_close(inputs.back(view, grouped), x, rtol=0, atol=0)


def test_a_layout_that_needs_a_copy_is_not_served():
    inputs = Inputs(small(layout="bhsd", batch=2), FakeDevice())
    with pytest.raises(NotServedError, match="in one axis"):
        inputs.view(inputs.xs[0][0], "tokens")


def test_a_row_in_place_leaves_the_others_inputs():
    seen = {}

    def make(inputs):
        seen["before"] = [x.clone() for x in inputs.xs[0]]
        seen["inputs"] = inputs.xs[0]
        return Rotate(
            lambda xs: [x.copy_(y) for x, y in zip(xs, rotated(inputs, xs), strict=True)], in_place=True
        )

    found = run(small(), OWN, peer("in place", make))["rows"]
    assert "seconds" in found["in place"]
    assert all(map(torch.equal, seen["before"], seen["inputs"]))


def test_rows_without_a_time_say_why():
    def refuses(inputs):
        raise NotServedError("half pairs alone")

    def fails(inputs):
        raise RuntimeError("no kernel\nfor this device")

    found = run(
        small(direction=BACKWARD),
        *(peer("refuses", refuses), peer("fails", fails)),
        peer("wrong", lambda inputs: Rotate(lambda xs: tuple(2 * x for x in xs))),
        peer("not a number", lambda inputs: Rotate(lambda xs: (xs[0] * torch.nan, rotated(inputs, xs)[1]))),
        peer("forward", lambda inputs: Rotate(lambda xs: rotated(inputs, xs), gradient=False)),
        SimpleNamespace(on_gpu=lambda inputs: 1 / 0),
    )["rows"]
    assert found["refuses"] == {"not served": "half pairs alone"}
    assert found["fails"] == {"failed": "RuntimeError: no kernel for this device"}
    assert found["wrong"]["wrong"].startswith("off by 1")
    assert found["not a number"]["wrong"].startswith("off by nan")
    assert found["forward"] == {"not served": "has no backward"}
    assert found["5"] == {"failed": "ZeroDivisionError: division by zero"}
    assert "seconds" in found[COPY]


def test_our_rows_are_judged_by_roundings():
    """An error that a peer with 16-bit tables may have is too large for ours."""
    nearly = lambda inputs: Rotate(lambda xs: tuple(y * 1.01 for y in rotated(inputs, xs)))  # noqa: E731
    found = run(small(), peer(OURS, nearly), peer("another", nearly))["rows"]
    assert "wrong" in found[OURS]
    assert "seconds" in found["another"]


def test_a_case_larger_than_the_memory_fails_alone():
    device = FakeDevice()
    device.memory_bytes = 2**16
    found = run(small(), OWN, device=device)
    assert found["failed"].startswith("needs about 0 GB")
    assert found["rows"] == {}


# ---- verdicts ----


def large(**rows):
    """Return the numbers of a case of 64 MB with these rows: ratios to a copy."""
    case = Case("prefill", 1, 4096, "bfloat16", "half")
    ours = rows.pop("ours")
    found = {"seconds": [1, 1, 1], "copies": ours, "launches": 1, "against": rows}
    return {case.name: {**case._asdict(), "bytes": case.bytes, "rows": {OURS: found}}}


def verdict(numbers, start):
    (found,) = [each for each in verdicts(numbers) if start in each["target"]]
    return found


@pytest.mark.parametrize(("ratio", "kind"), [(1.0, MET), (COPIES, MET), (1.2, MISSED)])
def test_verdict_on_a_device_copy(ratio, kind):
    found = verdict(large(ours=[1, ratio, 2]), "forward, bfloat16, half")
    assert (found["verdict"], found["worst"], found["cases"]) == (kind, ratio, 1)
    assert verdict(large(ours=[1, ratio, 2]), "backward, bfloat16, half")["verdict"] == OPEN


@pytest.mark.parametrize(
    ("ratios", "kind"), [([0.9, 0.95, 1.0], MET), ([0.99, 1.001, 1.01], MET), ([1.01, 1.02, 1.03], MISSED)],
    ids=["faster", "within the spread", "slower"],
)  # fmt: skip
def test_verdict_on_a_kernel(ratios, kind):
    found = verdict(large(ours=[1, 1, 1], **{FLASH: ratios}), "flash-attn")
    assert (found["verdict"], found["worst"]) == (kind, ratios[1])
    assert len(found["slower in"]) == (kind == MISSED)
    assert verdict(large(ours=[1, 1, 1]), "Liger")["verdict"] == OPEN


def test_verdict_on_launches():
    numbers = large(ours=[1, 1, 1])
    assert verdict(numbers, "one launch")["verdict"] == MET
    next(iter(numbers.values()))["rows"][OURS]["launches"] = 2
    assert verdict(numbers, "one launch")["verdict"] == MISSED
    next(iter(numbers.values()))["rows"][OURS]["launches"] = None
    assert verdict(numbers, "one launch")["verdict"] == OPEN


@pytest.mark.parametrize(("ratio", "kind"), [(1.01, MET), (1.02, MISSED)])
def test_verdict_on_exact_angles(ratio, kind):
    assert verdict(large(ours=[1, 1, 1], **{ROTATION: [1, ratio, 2]}), "exact angles")["verdict"] == kind


# ---- the whole benchmark ----


PREFILL = [
    small(tokens=tokens, dtype=dtype, pairing=pairing, direction=direction)
    for tokens in (64, 128)
    for dtype in DTYPES
    for pairing in PAIRINGS
    for direction in (FORWARD, BACKWARD)
]
EVERY = [*PREFILL, small(group="decode", batch=3, tokens=1), small(group="fewer heads", heads=(1,))]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The path of the JSON of a whole run in which every target is met."""
    path = tmp_path_factory.mktemp("whole") / "gpu.json"
    measured(path, {OURS: 1.05, ROTATION: 1.05, FLASH: 1.5, LIGER: 1.25})
    return path


def measured(path, factors=None, chosen=EVERY):
    """Run the benchmark in seconds: small arrays and few heads count as cases of the targets."""
    modules = {"own": OWN, "flash_attention": peer(FLASH), "liger": peer(LIGER)}
    options = SimpleNamespace(seconds=1e-3, quick=True, json=path)
    missing = {"vllm": "ModuleNotFoundError: No module named 'vllm'"}
    device = FakeDevice(factors, {COPY: 2})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("_gpu_verdicts.LARGE", 1)
        patch.setattr("_gpu_verdicts.SHARED_HEADS", 4)
        patch.setattr("gc.collect", lambda: 0)  # it would take most of the time
        return gpu.measure(chosen, device, modules, missing, options, lambda text: None)


def test_the_whole_benchmark(whole, capsys):
    result = json.loads(whole.read_text("utf-8"))
    assert {each["verdict"] for each in result["verdicts"]} == {MET}
    assert result["machine"]["gpu"]["name"] == "fake device"
    assert set(result["numbers"]) == {case.name for case in EVERY}
    assert {"date", "what", "versions", "commit", "missing"} <= result.keys()
    gpu.show(result)
    printed = capsys.readouterr().out
    assert printed.count(f"\n{MET} ") >= 11
    assert "missing: vllm: ModuleNotFoundError: No module named 'vllm'" in printed


def test_a_row_slower_than_a_copy_misses_the_targets(tmp_path):
    found = measured(tmp_path / "gpu.json", {OURS: 1.2, FLASH: 1.1, LIGER: 1.3}, PREFILL[:8])["verdicts"]
    kinds = {each["target"]: each["verdict"] for each in found}
    assert {kind for target, kind in kinds.items() if "device copy" in target} == {MISSED}
    assert {kind for target, kind in kinds.items() if "flash-attn" in target} == {MISSED}
    assert {kind for target, kind in kinds.items() if "Liger" in target} == {MET}
    assert {kind for target, kind in kinds.items() if "exact" in target} == {MISSED}


# ---- missing packages and devices ----


def test_missing_peers_are_listed_with_the_reason():
    modules, missing = gpu.load()
    assert {*modules, *missing} == set(gpu.PEERS)
    assert "own" in modules
    for name, package in [("flashinfer", "flashinfer"), ("vllm", "vllm"), ("liger", "liger_kernel")]:
        if find_spec(package) is None:
            assert missing[name] == f"ModuleNotFoundError: No module named '{package}'"


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_gpu_the_command_says_what_is_needed(monkeypatch):
    monkeypatch.setattr("sys.argv", ["gpu.py", "--quick"])
    with pytest.raises(SystemExit) as raised:
        gpu.main()
    text = raised.value.code
    assert "needs an NVIDIA GPU" in text
    assert "\n" not in text


# ---- the device, with PyTorch's part of CUDA replaced ----


class Event:
    """An event whose time is the number of the record in `order`, in milliseconds."""

    order, asleep = [], []

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.order.append("record")
        self.place = len(self.order)

    def query(self):
        return not self.asleep.pop(0)

    def synchronize(self):
        self.order.append("synchronize")

    def elapsed_time(self, end):
        return end.place - self.place


@pytest.fixture
def cuda(monkeypatch):
    """The class Cuda on a GPU with a clock of 1 GHz, and no nvidia-smi; `Event.order` has its actions."""
    known = {"name": "a GPU", "major": 9, "minor": 0, "total_memory": 80 * 10**9, "L2_cache_size": 50 * 2**20}
    known |= {"multi_processor_count": 132, "clock_rate": 10**6, "uuid": "none"}
    Event.order, Event.asleep = [], []
    replaced = {"is_available": lambda: True, "current_device": lambda: 0, "Event": Event}
    replaced |= {"get_device_properties": lambda device: SimpleNamespace(**known)}
    replaced |= {"_sleep": lambda cycles: Event.order.append(cycles)}
    for name, value in replaced.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr("shutil.which", lambda program: None)
    return _gpu_device.Cuda()


def test_facts_of_a_device(cuda):
    assert (cuda.l2_bytes, cuda.memory_bytes) == (50 * 2**20, 80 * 10**9)
    assert cuda.facts() == {
        "name": "a GPU",
        "compute capability": "9.0",
        "memory, GB": 80.0,
        "SMs": 132,
        "L2, MiB": 50.0,
        "CUDA of PyTorch": torch.version.cuda,
    }


@pytest.mark.skipif(sys.platform == "win32", reason="the program is a shell script")
def test_facts_of_nvidia_smi(cuda, monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 580.1, 700.00, 1980, 2619, 1980, 2619, 35\n", "utf-8")
    program.chmod(0o755)
    monkeypatch.setattr("shutil.which", lambda name: str(program))
    facts = cuda.facts()
    assert (facts["driver"], facts["SM clock, MHz"], facts["temperature, °C"]) == ("580.1", "1980", "35")
    program.write_text("#!/bin/sh\necho no such device\n", "utf-8")
    assert "driver" not in cuda.facts()


def test_the_device_sleeps_while_the_host_enqueues(cuda):
    Event.asleep = [True]
    timing = cuda.time(lambda: Event.order.append("call"), 3, 1e-3)
    cycles = int((_gpu_device.AHEAD + 2 * 1e-3 * 3) * 1e9)
    assert Event.order == [cycles, "record", "call", "call", "call", "record", "synchronize"]
    assert timing.device == pytest.approx(4e-3 / 3)
    assert timing.ahead


def test_a_device_that_woke_early_sleeps_twice_as_long(cuda):
    Event.asleep = [False, True]
    assert cuda.time(lambda: None, 1, 1e-3).ahead
    first, second = (each for each in Event.order if isinstance(each, int))
    assert second == pytest.approx(2 * first)
    Event.asleep = [False] * 4
    assert not cuda.time(lambda: None, 1, 1e-3).ahead


def test_launches_are_the_devices_work_in_the_profile(cuda, monkeypatch):
    kind = torch.autograd.DeviceType
    names = [("kernel", kind.CUDA), ("aten::add", kind.CPU), ("Activity Buffer Request", kind.CUDA)]
    names += [("Memcpy DtoD", kind.CUDA), ("cudaLaunchKernel", kind.CUDA)]
    found = [SimpleNamespace(name=name, device_type=device) for name, device in names]
    found.append(SimpleNamespace(name="a range", device_type=kind.CUDA, is_user_annotation=True))
    profile = nullcontext(SimpleNamespace(events=lambda: found))
    monkeypatch.setattr(torch.profiler, "profile", lambda activities: profile)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert cuda.launches(lambda: None) == ["kernel", "Memcpy DtoD"]
    found.clear()
    assert cuda.launches(lambda: None) is None


# ---- the calls of peers, with their packages replaced by records of the calls ----


@pytest.fixture
def recorded(monkeypatch):
    """Return a function that makes a module with a function, whose calls are returned in a list."""

    def make(module, name, result=lambda arguments: None):
        calls = []

        def function(*arguments, **options):
            calls.append((arguments, options))
            return result(arguments)

        parts = module.split(".")
        for end in range(1, len(parts) + 1):
            monkeypatch.setitem(sys.modules, ".".join(parts[:end]), SimpleNamespace(**{name: function}))
        return calls

    return make


def called(module, case):
    """Call the first row of a peer's module once. Return the tensors that it was given, and the inputs."""
    inputs = Inputs(case, FakeDevice())
    rotate = next(iter(module.on_gpu(inputs).values()))()
    xs = _gpu_turns.own(inputs.xs[0], rotate, inputs)
    rotate.function(xs)
    return xs, inputs


@pytest.mark.parametrize("tokens", [1, 64])
def test_call_of_flash_attention(recorded, tokens):
    recorded("flash_attn.layers.rotary", "apply_rotary_emb")
    calls = recorded("flash_attn.ops.triton.rotary", "apply_rotary")
    xs, inputs = called(
        flash_attention, small(tokens=tokens, batch=3, pairing="interleaved", dtype="bfloat16")
    )
    assert len(calls) == 2
    for x, ((given, cos, sin), options) in zip(xs, calls, strict=True):
        assert given is x
        assert cos.shape == sin.shape == (64 if tokens > 1 else 131072, 8)
        assert cos.dtype == x.dtype  # the kernel requires it
        assert options["interleaved"] is True
        starts = options["seqlen_offsets"]
        assert starts == 0 if tokens > 1 else starts.tolist() == inputs.pos[:, 0].tolist()
        torch.testing.assert_close(cos[5], torch.cos(5 * torch.tensor(inputs.rope.frequencies)).bfloat16())


def test_call_of_liger(recorded):
    calls = recorded("liger_kernel.ops.rope", "LigerRopeFunction")
    liger_class = sys.modules["liger_kernel.ops.rope"]
    liger_class.LigerRopeFunction = SimpleNamespace(apply=lambda *xs: calls.append(xs) or xs)
    (q, k), _ = called(liger, small())
    ((first, second, cos, sin),) = calls
    assert first is q
    assert second is k
    assert q.shape == (1, 4, 64, 16)
    assert q.transpose(1, 2).is_contiguous()
    assert cos.shape == sin.shape == (1, 64, 16)


def test_call_of_flashinfer(recorded):
    calls = recorded("flashinfer", "apply_rope_pos_ids_inplace")
    (q, k), inputs = called(flashinfer, small(batch=2, tokens=8, pairing="interleaved"))
    (((first, second, pos), options),) = calls
    assert (first is q, second is k, q.shape, k.shape) == (True, True, (16, 4, 16), (16, 2, 16))
    assert pos.tolist() == [*range(8), *range(8)]
    assert pos.dtype == torch.int32
    assert options == {"interleave": True, "rope_theta": inputs.rope.base}


def test_call_of_vllm(recorded):
    calls = recorded("vllm._custom_ops", "rotary_embedding")
    (q, _), inputs = called(vllm, small(batch=2, tokens=1))
    (((pos, first, second, width, cache, is_neox), options),) = calls
    assert (first.shape, second.shape, width, is_neox, options) == ((2, 64), (2, 32), 16, True, {})
    assert first.data_ptr() == q.data_ptr()
    assert pos.tolist() == [4095, 4112]
    angle = 4112 * torch.tensor(inputs.rope.frequencies[1], dtype=torch.float64)
    expected = torch.stack([angle.cos(), angle.sin()]).float()
    torch.testing.assert_close(cache[4112, [1, 9]], expected, rtol=0, atol=1e-6)
    with pytest.raises(NotServedError, match="in one axis"):
        called(vllm, small(layout="bhsd"))


def test_call_of_transformers(recorded):
    calls = recorded(
        "transformers.models.llama.modeling_llama", "apply_rotary_pos_emb", lambda arguments: arguments[:2]
    )
    (q, _), _ = called(huggingface, small(tokens=1, batch=3, dtype="bfloat16"))
    (((first, _, cos, sin), options),) = calls
    assert first is q
    assert q.shape == (3, 4, 1, 16)
    assert (cos.shape, sin.shape, cos.dtype, options) == ((3, 1, 16), (3, 1, 16), torch.bfloat16, {})


@pytest.mark.parametrize("module", [liger, flashinfer, vllm, huggingface], ids=lambda module: module.__name__)
def test_kernels_of_q_and_k_refuse_one_array(recorded, module):
    for name in ("liger_kernel.ops.rope", "flashinfer", "vllm._custom_ops"):
        recorded(name, "x")
    recorded("transformers.models.llama.modeling_llama", "apply_rotary_pos_emb")
    for name, function in [
        ("liger_kernel.ops.rope", "LigerRopeFunction"),
        ("vllm._custom_ops", "rotary_embedding"),
    ]:
        setattr(sys.modules[name], function, None)
    sys.modules["flashinfer"].apply_rope_pos_ids_inplace = None
    with pytest.raises(NotServedError, match="q and k together"):
        called(module, small(heads=(1,)))


# ---- the page and the plot ----


def test_the_page_is_made_from_the_newest_result():
    path = gpu.newest()
    result = json.loads(path.read_text("utf-8")) if path else None
    page = (ROOT / "docs" / "speed" / "gpu.md").read_text("utf-8")
    assert page == "\n".join(_gpu_table.page(result)), "run `python bench/gpu.py --tables`"
    assert (ROOT / "docs" / "speed" / "gpu.svg").exists() == bool(path)


def test_without_a_result_the_page_has_the_command():
    page = "\n".join(_gpu_table.page(None))
    assert "No GPU has been measured yet" in page
    assert "|" not in page
    assert _gpu_table.COMMAND in page


def test_page_of_a_result(whole, tmp_path):
    (tmp_path / "docs" / "speed").mkdir(parents=True)
    _gpu_table.write(json.loads(whole.read_text("utf-8")), tmp_path)
    page = (tmp_path / "docs" / "speed" / "gpu.md").read_text("utf-8")
    assert "## Prefill: forward, bfloat16, half" in page
    assert f"| {OURS} | 1.05 | 1.05 |" in page
    assert f"| {FLASH} | 1.50 | 1.50 |" in page
    assert "### float32, half: GPU, graph, host" in page
    assert "| 3 sequences |" in page
    assert "* vllm: ModuleNotFoundError: No module named 'vllm'." in page
    served = ra.explain(torch.ones(2, 16), 0).backend  # "native", or "torch" without the kernel
    assert f"served by the backends: {served} in {len(EVERY)} cases." in page
    assert "fake device" in page
    assert all(line.count("|") > 2 for line in page.splitlines() if line.startswith("|"))


@pytest.mark.library("numpy", "torch")  # the group numpy has matplotlib
def test_plot_of_a_result(whole, tmp_path):
    (tmp_path / "docs" / "speed").mkdir(parents=True)
    script = f"""
        import json, sys
        from pathlib import Path
        sys.path.append({str(ROOT / "bench")!r})
        import _gpu_plot
        _gpu_plot.write(json.loads(Path({str(whole)!r}).read_text("utf-8")), Path({str(tmp_path)!r}))
    """
    child.run(script)  # it chooses a backend of matplotlib for the whole process
    plot = (tmp_path / "docs" / "speed" / "gpu.svg").read_text("utf-8")
    assert all(text in plot for text in (OURS, FLASH, "backward, bfloat16", "time in copies", "fake device"))
