"""The first call of a process may be of any kind: it imports no compiler, and changes no later call.

One child imports PyTorch; each case is a process that it forks.
"""

import importlib
import os

import child
import pytest

import rope_array as ra
from rope_array._backends import _native

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.library("torch"),
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork"),
]

CASES = """
    import contextlib, os, sys, traceback, warnings
    import torch
    import rope_array as ra
    from rope_array._backends import _native

    rope, HALF = ra.RoPE(16), ra.RoPE(16, pairing="half")
    assert not any(name.startswith("rope_array._backends.torch") for name in sys.modules)

    def in_a_process(case, *arguments):
        if (process := os.fork()) == 0:
            try:
                case(*arguments)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        assert os.waitpid(process, 0)[1] == 0, (case, *arguments)

    def imports_no_compiler():
        pos, x = torch.arange(3), torch.ones(2, 3, 16, requires_grad=True)
        ra.apply(x, pos).sum().backward()
        rope.rotation(pos, like=x).apply((x, x))
        ra.torch.RotaryEmbedding(rope)(x, pos)
        assert "torch._dynamo" not in sys.modules  # takes a second

    MODES = {
        "inference": torch.inference_mode,
        "no_grad": torch.no_grad,
        "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        "meta": lambda: torch.device("meta"),
        "vmap": contextlib.nullcontext,
        "forward": torch.autograd.forward_ad.dual_level,
    }

    def first_in_a_mode(name):
        with MODES[name]():
            if name == "vmap":
                torch.func.vmap(lambda x: rope.apply(x, 3))(torch.ones(2, 5, 16))
            else:
                rope.apply(torch.ones(5, 16), 3)
        for x in (torch.ones(5, 16), torch.ones(5, 16, requires_grad=True)):
            assert ra.explain(x, 3, rope).backend == "native", name
            with torch.inference_mode():
                assert ra.explain(torch.ones(5, 16), 3, rope).backend == "native", name

    def first_is_compiled():
        def function(x, pos):
            return HALF.rotation(pos, like=x).apply(ra.apply(x, pos, base=99.0))

        counter = CompileCounter()
        compiled = torch.compile(function, backend=counter, fullgraph=True)
        calls = [(torch.randn(2, s, 16), torch.arange(s)) for s in (3, 4, 9)]
        results = [compiled(*call) for call in calls]
        assert 1 <= counter.frame_count <= 2
        for call, y in zip(calls, results):
            assert torch.equal(y, function(*call))

    def first_is_an_operator():
        # It reads a plan that another process has written.
        ra.apply(torch.ones(4), 0)  # loads the backend of PyTorch
        x, pos = torch.arange(32.0).reshape(2, 16), torch.tensor([3, 10**9])
        (y,) = torch.ops.rope_array.rotate_at([x], pos, None, sys.argv[1], False, -2)
        assert torch.equal(y, ra.RoPE(16, base=77.0, attention_factor=1.25).apply(x, pos))

    in_a_process(imports_no_compiler)
    if _native.kernel:
        in_a_process(first_is_an_operator)
    for name in MODES if _native.kernel else ():
        in_a_process(first_in_a_mode, name)
    import torch._inductor.config  # imported before warnings become errors: it warns
    from torch._dynamo.testing import CompileCounter
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message=".*fork", category=DeprecationWarning)
    in_a_process(first_is_compiled)
    """


def test_every_kind_of_first_call():
    plan = ra.RoPE(16, base=77.0, attention_factor=1.25)._plan
    if _native.kernel:
        ra.apply(torch.ones(4), 0)  # loads the backend of PyTorch
        importlib.import_module("rope_array._backends.torch._compiled").write_text(plan)
    child.run(CASES, plan.derived.text or "")
