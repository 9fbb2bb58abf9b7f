"""A model of a rotation's time on a GPU, from the bytes that it moves and the instructions that it issues.

The time is the longer of the two, plus launches. A kernel is described by two numbers: bytes and thread
instructions for each rotated pair. Count the instructions in the kernel's SASS. The model leaves out latency,
occupancy and caches, so a kernel can be slower than its model, and never faster. A test of a limit on
`issue_share` fails if a change would make instructions, instead of memory, the limit.

No number here was measured by this project. Each GPU states its sources.
"""

from typing import NamedTuple

SLOTS, LANES = 4, 32  # warp schedulers of an SM, each issues one instruction for 32 threads in a cycle


class Gpu(NamedTuple):
    """A GPU: bytes per second that a device copy reads and writes together, SMs, hertz, seconds of a launch.

    `launch` is the host's time for one launch of a Triton kernel from Python. It counts as time of the GPU
    only if the GPU waits for the host, as in eager decoding.
    """

    name: str
    bandwidth: float
    sms: int
    clock: float
    launch: float

    @property
    def issue_rate(self):
        """Thread instructions per second, if every scheduler issues in every cycle."""
        return self.sms * SLOTS * LANES * self.clock


# 3.0 TB/s is a copy's rate on an H100 SXM, whose data sheet has 3.35 TB/s. The project knows no such rate of
# the other two: the same share of the data sheet's rate is assumed.
COPY_SHARE = 3.0 / 3.35
# The low end of 20 to 34 µs, of github.com/Dao-AILab/flash-attention/issues/2818.
LAUNCH = 20e-6

# NVIDIA A100 data sheet: 2,039 GB/s (80 GB SXM), 19.5 TFLOPS of float32 = 108 SMs × 64 lanes × 2 × 1.41 GHz.
A100 = Gpu("A100", 2.039e12 * COPY_SHARE, 108, 1.41e9, LAUNCH)
# NVIDIA H100 data sheet: 132 SMs (SXM). About 1.7 GHz under load, below its boost clock of 1.98 GHz.
H100 = Gpu("H100", 3.0e12, 132, 1.7e9, LAUNCH)
# NVIDIA HGX B200 data sheet, an eighth of the system: 8 TB/s, 75 TFLOPS of float32 = 148 SMs × 128 lanes × 2
# × 1.98 GHz. The clock under load is assumed to be lower in the proportion of the H100's.
B200 = Gpu("B200", 8.0e12 * COPY_SHARE, 148, 1.98e9 * 1.7 / 1.98, LAUNCH)
GPUS = (A100, H100, B200)


def pair_bytes(itemsize, heads=None, table_itemsize=0):
    """Return the bytes moved for each rotated pair: x is read, the result is written.

    With `heads` and `table_itemsize`, the cos and sin of a pair are read from memory once for all heads.
    """
    table = 2 * table_itemsize / heads if heads else 0
    return 4 * itemsize + table


def pair_instructions(rotating, angle, heads):
    """Return the instructions of a pair, if a thread computes an angle and rotates `heads` heads by it."""
    return rotating + angle / heads


def memory_seconds(gpu, pairs, bytes_per_pair):
    return pairs * bytes_per_pair / gpu.bandwidth


def issue_seconds(gpu, pairs, instructions_per_pair):
    return pairs * instructions_per_pair / gpu.issue_rate


def seconds(gpu, pairs, bytes_per_pair, instructions_per_pair, launches=0):
    """Return the predicted seconds of a call. `launches=0` if the host is ahead of the GPU."""
    moved = memory_seconds(gpu, pairs, bytes_per_pair)
    return max(moved, issue_seconds(gpu, pairs, instructions_per_pair)) + launches * gpu.launch


def free_instructions(gpu, bytes_per_pair):
    """Return how many instructions a pair may have before they take longer than its bytes."""
    return bytes_per_pair / gpu.bandwidth * gpu.issue_rate


def issue_share(gpu, bytes_per_pair, instructions_per_pair):
    """Return the time of the instructions divided by the time of the bytes: from 1 on, they are the limit."""
    return instructions_per_pair / free_instructions(gpu, bytes_per_pair)


def copies(gpu, bytes_per_pair, instructions_per_pair, itemsize):
    """Return the predicted time divided by the time of a copy of x."""
    predicted = seconds(gpu, 1, bytes_per_pair, instructions_per_pair)
    return predicted / memory_seconds(gpu, 1, pair_bytes(itemsize))
