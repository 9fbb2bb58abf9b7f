"""The kernel's thread pool in children of fork."""

import os
import shutil
import subprocess
import sys

import child
import pytest

from rope_array._backends import _native

pytestmark = pytest.mark.library("numpy")

COMPILER = shutil.which("cc")

# A nested pid namespace, or wraparound, can give a child its parent's pid.
CONSTANT_GETPID = "#include <unistd.h>\npid_t getpid(void) { return 4242; }\n"

FORK_AFTER_THREADS = """
    import os, signal
    import numpy as np, rope_array as ra

    assert os.getpid() == 4242
    x = np.ones((50_000, 64), np.float32)
    want = ra.apply(x, 7)
    pid = os.fork()
    if not pid:
        signal.alarm(30)
        os._exit(0 if (ra.apply(x, 7) == want).all() else 1)
    print(os.waitpid(pid, 0)[1])
"""


@pytest.mark.skipif(_native.kernel is None, reason="the C++ kernel is not built")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="LD_PRELOAD replaces getpid on Linux")
@pytest.mark.skipif(not COMPILER, reason="no C compiler to build a getpid")
def test_child_with_its_parents_pid_starts_threads_of_its_own(tmp_path):
    source, library = tmp_path / "getpid.c", tmp_path / "getpid.so"
    source.write_text(CONSTANT_GETPID)
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", library, source], check=True)
    preload = " ".join(filter(None, [os.environ.get("LD_PRELOAD"), str(library)]))
    assert child.run(FORK_AFTER_THREADS, LD_PRELOAD=preload, ROPE_ARRAY_NUM_THREADS="4").strip() == "0"
