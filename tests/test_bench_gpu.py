"""bench/speed.py --gpu run whole on a fake device: CPU tensors, and a clock that makes every number known."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "bench"))

import _speed_gpu
import _speed_plot
import _speed_table
import _targets
import speed
from _speed_rounds import Timing
from peers import own
from peers._timed import Rotate

# The environment of both libraries has matplotlib, for the plot.
pytestmark = pytest.mark.library("numpy", "torch")

PAGE = Path(__file__).parents[1] / "docs" / "speed" / "gpu.md"
COPY, OURS, ROTATION = "copy", "rope_array", "rope_array, Rotation"
FLASH, LIGER = "flash-attn, Triton kernel", "Liger, Triton kernel"
BANDWIDTH = 1e12  # bytes per second of the fake device
HOST = 1e-5  # seconds of the fake host for one call
Case = type(speed.gpu_cases(True)[0])


class FakeDevice:
    """A device whose copies take their bytes ÷ BANDWIDTH, and other rows `factors` times as long.

    Every second timing takes twice as long, for all rows, as if the clock of a GPU changed.
    """

    l2_bytes, memory_bytes, device = 2**16, 2**30, torch.device("cpu")

    def __init__(self, factors):
        self.factors, self.rounds = factors, {}

    def facts(self):
        return {"name": "fake device"}

    def synchronize(self):
        pass

    def forget(self):
        pass

    def seconds(self, contender):
        moved = 2 * sum(y.numel() * y.element_size() for y in contender())
        return moved / BANDWIDTH * self.factors.get(contender.name, 1)

    def time(self, contender, loops, expected):
        number = self.rounds[contender.name] = self.rounds.get(contender.name, 0) + 1
        return Timing(self.seconds(contender) * (1 + number % 2), HOST)

    def graph(self, contender, loops):
        seconds = self.seconds(contender)
        return lambda: seconds

    def launches(self, contender):
        return ["a kernel"] * (2 if contender.name == COPY else 1)


def rotated(inputs, xs):
    """Rotate (B, S, H, D) by the tables of the inputs, as another implementation would."""
    cos, sin = (table[:, :, None] for table in inputs.token_tables())

    def swapped(x):
        if inputs.case.pairing == "half":
            left, right = x.chunk(2, dim=-1)
            return torch.cat((-right, left), -1)
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)

    return tuple(x * cos + swapped(x) * sin for x in xs)


def peer(name, function=rotated, **options):
    """Return a module of a peer whose row calls `function(inputs, xs)`."""
    make = lambda inputs: Rotate(lambda xs: function(inputs, xs), **options)  # noqa: E731
    return SimpleNamespace(on_gpu=lambda inputs: {name: lambda: make(inputs)})


OWN = SimpleNamespace(
    on_gpu=lambda inputs: {name: make for name, make in own.on_gpu(inputs).items() if "CuPy" not in name}
)


def small(**fields):
    return Case(**{"group": "prefill", "batch": 1, "tokens": 64, "dtype": "float32", "pairing": "half",
                   "heads": (4, 2), "head_dim": 16, **fields})  # fmt: skip


CASES = [
    small(dtype=dtype, pairing=pairing, direction=direction)
    for dtype in ("bfloat16", "float32")
    for pairing in ("half", "interleaved")
    for direction in ("forward", "backward")
]
CASES += [small(layout="bhsd"), small(direction="forward and backward"), small(heads=(1,))]
CASES += [small(group="decode", batch=3, tokens=1), small(group="decode", batch=2**22, tokens=1)]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the command on cases, modules of peers, and factors of their times; return the file's content."""

    def run(chosen, modules, factors):
        path = tmp_path / "gpu.json"
        names = [str(number) for number in range(len(modules))]
        for name, module in zip(names, modules, strict=True):
            monkeypatch.setitem(sys.modules, f"peers.{name}", module)
        monkeypatch.setitem(sys.modules, "vllm", None)  # importing it raises ModuleNotFoundError
        monkeypatch.setattr(_speed_gpu.GpuTrial, "peers", (*names, "vllm"))
        monkeypatch.setattr(_speed_gpu.GpuTrial, "seconds", (0.001, 0.001))
        monkeypatch.setattr(_speed_gpu, "Cuda", lambda: FakeDevice(factors))
        monkeypatch.setitem(speed.CASES, "gpu", lambda quick: chosen)
        # Small arrays and few heads count as cases of the targets.
        monkeypatch.setattr(_targets, "LARGE", 1)
        monkeypatch.setattr(_targets, "SHARED_HEADS", 4)
        monkeypatch.setattr("gc.collect", lambda: 0)  # it would take most of the time
        monkeypatch.setattr(sys, "argv", ["speed.py", "--gpu", "--quick", "--json", str(path)])
        speed.main()
        return json.loads(path.read_text("utf-8"))

    return run


def test_a_whole_run_its_page_and_its_plot(run, capsys, tmp_path):
    result = run(
        CASES, (OWN, peer(FLASH), peer(LIGER)), {OURS: 1.05, ROTATION: 1.05, FLASH: 1.0, LIGER: 1.25}
    )
    verdicts = {each["target"]: each["verdict"] for each in result["targets"]}
    assert {target for target in verdicts if verdicts[target] != "met"} == {
        "in times of flash-attn's kernel, lower quartile"
    }
    *cases, too_large = result["numbers"].values()
    assert "memory" in too_large["failed"]
    for case in cases:
        ours, copied = case["rows"][OURS], case["rows"][COPY]
        assert copied["seconds"][0] == pytest.approx(2 * case["bytes"] / BANDWIDTH, rel=1e-3)
        assert (ours["launches"], copied["launches"], ours["host"]) == (1, 2, [HOST] * 3)
        assert ours["copies"] == [1.05] * 3
        assert ours["against"][LIGER] == pytest.approx([1.05 / 1.25] * 3, rel=1e-3)
        in_place = case["rows"].get("rope_array, out=x", {})
        assert ("seconds" in in_place) == (case["direction"] == "forward")
        assert ("graph" in ours) == (case["group"] == "decode")
    assert "* vLLM: failed: ModuleNotFoundError" in capsys.readouterr().out

    folder = tmp_path / "docs" / "speed"
    folder.mkdir(parents=True)
    _speed_table.write("gpu", result, tmp_path)
    _speed_plot.write("gpu", result, tmp_path)
    page, plot = ((folder / name).read_text("utf-8") for name in ("gpu.md", "gpu.svg"))
    assert "## Prefill: forward, bfloat16, half" in page
    assert f"| {OURS} | 1.05 |" in page
    assert "* vLLM: failed: ModuleNotFoundError: " in page
    assert all(text in plot for text in (OURS, FLASH, "backward, bfloat16", "fake device"))


def test_rows_without_a_time_say_why(run):
    """Our rows are judged by roundings, others by 5 %."""
    nearly = lambda inputs, xs: tuple(y * 1.01 for y in rotated(inputs, xs))  # noqa: E731
    peers = (
        peer("refuses", lambda inputs, xs: inputs.only("interleaved")),
        peer("fails", lambda inputs, xs: 1 / 0),
        *(peer("nearly", nearly), peer(OURS, nearly), peer("wrong", lambda inputs, xs: xs)),
        peer("nan", lambda inputs, xs: (xs[0] * torch.nan, rotated(inputs, xs)[1])),
        peer("forward", gradient=False),
        SimpleNamespace(on_gpu=lambda inputs: 1 / 0),
    )
    (case,) = run([small(direction="backward")], peers, {})["numbers"].values()
    rows = case["rows"]
    assert rows["refuses"] == {"not served": "interleaved pairs alone"}
    assert rows["forward"] == {"not served": "has no backward"}
    assert rows["fails"] == rows["7"] == {"failed": "ZeroDivisionError: division by zero"}
    assert [kind for kind in ("wrong", "nan", OURS) if "wrong" not in rows[kind]] == []
    assert "seconds" in rows["nearly"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_without_a_gpu_the_command_says_what_is_needed(monkeypatch):
    monkeypatch.setattr("sys.argv", ["speed.py", "--gpu", "--quick"])
    with pytest.raises(SystemExit, match="needs an NVIDIA GPU"):
        speed.main()


def test_the_page_is_made_from_the_newest_result(tmp_path):
    (tmp_path / "docs" / "speed").mkdir(parents=True)
    _speed_table.write("gpu", _targets.newest("gpu"), tmp_path)
    written = (tmp_path / "docs" / "speed" / "gpu.md").read_text("utf-8")
    assert written == PAGE.read_text("utf-8"), "run `python bench/speed.py --gpu --tables`"
