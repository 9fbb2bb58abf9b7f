"""The clock of `bench/speed.py --gpu`: time, memory and launches, by PyTorch's CUDA events and profiler."""

import shutil
import subprocess
import time

import torch
from _speed_rounds import Timing

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
        known = self._known
        return {
            "name": known.name,
            "compute capability": f"{known.major}.{known.minor}",
            "memory, GB": round(known.total_memory / 1e9, 1),
            "SMs": known.multi_processor_count,
            "L2, MiB": round(known.L2_cache_size / 2**20, 1),
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
        kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        self.synchronize()
        with torch.profiler.profile(activities=kinds) as profile:
            contender()
            self.synchronize()
        on_device = (e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA)
        found = [e.name for e in on_device if not getattr(e, "is_user_annotation", False)]
        return [name for name in found if not name.startswith(NOT_WORK)] or None
