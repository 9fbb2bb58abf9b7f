"""bench/speed.py --gpu on a fake device: CPU tensors, and a clock that makes every number known."""

import json
import shutil
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import _pages
import _speed_gpu
import _speed_plot
import _targets
import pytest
import speed
import torch
from _speed_rounds import Timing
from peers import own
from peers._timed import Rotate

pytestmark = pytest.mark.library("numpy", "torch")

ROOT = Path(__file__).parents[1]
COPY, OURS, FLASH = "copy", "rope_array", "flash-attn, Triton kernel"
BANDWIDTH = 1e12  # bytes per second of the fake device
Case = type(speed.gpu_cases(True)[0])


class FakeDevice:
    """A device whose rows take their bytes ÷ BANDWIDTH, ours 1.05 times as long.

    Every second timing takes twice as long, for all rows, as if the clock of a GPU changed.
    """

    l2_bytes, memory_bytes, device = 2**16, 2**30, torch.device("cpu")

    def __init__(self):
        self.rounds = Counter()

    def facts(self):
        return {"name": "fake device"}

    def synchronize(self):
        pass

    def forget(self):
        pass

    def seconds(self, contender):
        moved = 2 * sum(y.numel() * y.element_size() for y in contender())
        return moved / BANDWIDTH * (1.05 if contender.name == OURS else 1)

    def time(self, contender, loops, expected):
        self.rounds[contender.name] += 1
        return Timing(self.seconds(contender) * (1 + self.rounds[contender.name] % 2), 1e-5)

    def graph(self, contender, loops):
        seconds = self.seconds(contender)
        return lambda: seconds

    def launches(self, contender):
        return ["a kernel"]


def rotated(inputs, xs):
    """Rotate (B, S, H, D) by the tables of the inputs, as another implementation would."""
    cos, sin = (table[:, :, None] for table in inputs.token_tables())
    halves = (x.chunk(2, dim=-1) for x in xs)
    return tuple(
        x * cos + torch.cat((-right, left), -1) * sin for x, (left, right) in zip(xs, halves, strict=True)
    )


def peer(name, function, **options):
    """Return a module of a peer whose row calls `function(inputs, xs)`."""
    make = lambda inputs: Rotate(lambda xs: function(inputs, xs), **options)  # noqa: E731
    return SimpleNamespace(on_gpu=lambda inputs: {name: lambda: make(inputs)})


PEERS = (
    SimpleNamespace(on_gpu=lambda inputs: {OURS: own.on_gpu(inputs)[OURS]}),
    peer(FLASH, rotated),
    peer("refuses", lambda inputs, xs: inputs.only("interleaved")),
    peer("fails", lambda inputs, xs: 1 / 0),
    peer("nearly", lambda inputs, xs: tuple(y * 1.01 for y in rotated(inputs, xs))),  # errors of 5 % pass
    peer("wrong", lambda inputs, xs: xs),
    peer("nan", lambda inputs, xs: (xs[0] * torch.nan, rotated(inputs, xs)[1])),
    peer("forward", rotated, gradient=False),
    SimpleNamespace(on_gpu=lambda inputs: 1 / 0),
)


def case(**fields):
    return Case(**{"group": "prefill", "batch": 1, "tokens": 64, "dtype": "bfloat16", "pairing": "half",
                   "heads": (4, 2), "head_dim": 16, **fields})  # fmt: skip


def test_a_run_its_page_and_its_plot(tmp_path, monkeypatch, capsys):
    """Peers that are missing, fail or are wrong get a reason in place of a time."""
    names = [str(number) for number in range(len(PEERS))]
    for name, module in zip(names, PEERS, strict=True):
        monkeypatch.setitem(sys.modules, f"peers.{name}", module)
    monkeypatch.setitem(sys.modules, "vllm", None)  # importing it raises ModuleNotFoundError
    monkeypatch.setattr(_speed_gpu.GpuTrial, "peers", (*names, "vllm"))
    monkeypatch.setattr(_speed_gpu.GpuTrial, "seconds", (0.001, 0.001))
    monkeypatch.setattr(_speed_gpu, "Cuda", FakeDevice)
    chosen = [case(), case(direction="backward"), case(group="decode", batch=2**22, tokens=1)]
    monkeypatch.setitem(speed.CASES, "gpu", lambda quick: chosen)
    monkeypatch.setattr(_targets, "LARGE", 1)  # small arrays count as cases of the targets
    monkeypatch.setattr("gc.collect", lambda: 0)  # it would take most of the time
    monkeypatch.setattr(sys, "argv", ["speed.py", "--gpu", "--quick", "--json", str(tmp_path / "gpu.json")])
    speed.main()

    record = json.loads((tmp_path / "gpu.json").read_text("utf-8"))
    verdicts = {target["target"]: target["verdict"] for target in record["targets"]}
    assert verdicts["forward, bfloat16, half, from 64 MB on, in times of a device copy"] == "met"
    assert verdicts["in times of flash-attn's kernel, lower quartile"] == "missed"
    forward, backward, too_large = record["numbers"].values()
    assert "memory" in too_large["failed"]
    assert forward["rows"][COPY]["seconds"][0] == pytest.approx(2 * forward["bytes"] / BANDWIDTH, rel=1e-3)
    assert forward["rows"][OURS]["copies"] == [1.05] * 3
    assert forward["rows"][OURS]["against"][FLASH] == pytest.approx([1.05] * 3, rel=1e-3)
    rows = backward["rows"]
    assert rows["refuses"] == {"not served": "interleaved pairs alone"}
    assert rows["forward"] == {"not served": "has no backward"}
    assert rows["fails"] == rows[names[-1]] == {"failed": "ZeroDivisionError: division by zero"}
    assert [name for name in ("wrong", "nan") if "wrong" not in rows[name]] == []
    assert "seconds" in rows["nearly"]
    assert "* vLLM: failed: ModuleNotFoundError" in capsys.readouterr().out

    folder = tmp_path / "docs" / "speed"
    folder.mkdir(parents=True)
    (tmp_path / "bench").mkdir()
    for page in ("docs/speed/gpu.md", "bench/README.md"):
        shutil.copy(ROOT / page, tmp_path / page)
    _pages.write("gpu", root=tmp_path, run=record)
    _speed_plot.write("gpu", record, tmp_path)
    page, plot = ((folder / name).read_text("utf-8") for name in ("gpu.md", "gpu.svg"))
    assert "## Prefill, half" in page
    assert f"| {OURS} | 1.05 |" in page
    assert all(text in plot for text in (OURS, FLASH, "backward, bfloat16", "fake device"))
