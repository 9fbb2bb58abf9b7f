"""Calls of rope_array in a process whose PyTorch lacks a name that it does not document.

Usage: internals_cases.py FOLDER NAME ...: for each name, and for "nothing", write a file of results by call.
"""

import functools
import os
import sys
from pathlib import Path

import torch


def remove(path):
    """Remove a name; return whether that is possible."""
    module, attributes = path, []
    while module not in sys.modules:
        module, _, attribute = module.rpartition(".")
        attributes.append(attribute)
    *owners, name = reversed(attributes)
    owner = functools.reduce(getattr, owners, sys.modules[module])
    try:
        delattr(owner, name)
    except AttributeError:  # a method of a class in C++, or an option of a config
        return False
    return True


class Doubling:
    """In place of a rope: a call that raises with it needs the name for PyTorch's own work."""

    def apply(self, x, pos, out=None):
        if isinstance(x, tuple):
            return tuple(self.apply(x, pos) for x in x)
        return 2 * x if out is None else out.mul_(2)


def calls(rope):
    """Return functions without arguments, by name: each returns tensors."""
    pos = torch.tensor([3, -1, 2**31 + 5])
    x, weight = torch.randn(2, 3, 8), torch.randn(2, 3, 8)

    def in_place(x):
        return rope.apply(x, pos, out=x)

    def gradient(function):
        leaf = x.clone().requires_grad_()
        return torch.autograd.grad(function(leaf), leaf, weight)

    def is_refused(function, *arguments):
        try:
            function(*arguments)
        except (RuntimeError, TypeError):
            return torch.tensor(True)
        return torch.tensor(False)

    def write_after_save():
        leaf = x.clone().requires_grad_()
        saved = leaf * 1
        loss = saved.square().sum()
        with torch.no_grad():
            in_place(saved)
        return is_refused(loss.backward)

    def in_a_mode(mode):
        with mode:
            return rope.apply(x, pos)

    def forward_mode():
        with torch.autograd.forward_ad.dual_level():
            return torch.autograd.forward_ad.unpack_dual(
                rope.apply(torch.autograd.forward_ad.make_dual(x, weight), pos)
            )

    def compiled():
        return torch.compile(lambda x, pos: rope.apply(x, pos), backend="aot_eager")(x, pos)

    return {
        "a tuple": lambda: rope.apply((x, x.double(), x.bfloat16()), pos),
        "in place": lambda: in_place(x.clone()),
        "out": lambda: rope.apply(x.clone(), pos, out=x.clone()),
        "gradient": lambda: gradient(lambda leaf: rope.apply(leaf, pos)),
        "gradient in place": lambda: gradient(lambda leaf: in_place(leaf * 1)),
        "gradient of a view": lambda: gradient(lambda leaf: in_place((leaf * 1)[:])),
        "a leaf": lambda: is_refused(in_place, x.clone().requires_grad_()),
        "a view of a leaf": lambda: is_refused(in_place, x.clone().requires_grad_()[:]),
        "of unbind": lambda: is_refused(in_place, (x.clone().requires_grad_() * 1).unbind()[0]),
        "a write after a save": write_after_save,
        "default device": lambda: in_a_mode(torch.device("cpu")),
        "inference": lambda: in_a_mode(torch.inference_mode()),
        "autocast": lambda: in_a_mode(torch.autocast("cpu")),
        "negated": lambda: rope.apply(torch._neg_view(x), pos),
        "zeros": lambda: rope.apply(torch._efficientzerotensor((2, 3, 8)), pos),
        "vmap": lambda: torch.func.vmap(lambda x: rope.apply(x, pos))(x),
        "jvp": lambda: torch.func.jvp(lambda x: rope.apply(x, pos), (x,), (weight,)),
        "forward mode": forward_mode,
        "jit": lambda: torch.jit.trace(lambda x: rope.apply(x, pos), x, check_trace=False)(2 * x),
        "compiled": compiled,
    }


def calls_of_others():
    """Return calls that PyTorch has none like."""
    import rope_array as ra

    rope, pos, x = ra.RoPE(8, pairing="half"), torch.tensor([3, -1, 2**31 + 5]), torch.randn(2, 3, 8)
    learned = ra.torch.LearnedRotaryEmbedding(rope)

    def explained():
        assert ra.explain(x, pos, rope).backend in ("native", "torch")
        return pos

    return {
        "fields": lambda: ra.apply(x, [1, 2, 3], base=7.0),
        "rotation": lambda: rope.rotation(pos, like=x),
        "by a rotation": lambda: rope.rotation(pos, like=x).apply(x),
        "learned": lambda: learned.rotation(pos, like=x).apply(x).detach(),
        "explain": explained,
    }


def hide(name):
    """Have `internal` find no such name, where no program can remove it from PyTorch."""
    from rope_array import _internals

    found = _internals.internal
    _internals.internal = lambda path: None if path == name else found(path)


def results(name):
    """Return tensors by call, or the text of an error. Calls that PyTorch itself cannot make are left out."""
    if name != "nothing" and not remove(name):
        hide(name)
    import rope_array as ra

    values = {}
    torch.manual_seed(0)
    by_doubling = calls(Doubling())
    torch.manual_seed(0)
    for call, function in (calls(ra.RoPE(8, base=500.0, pairing="half")) | calls_of_others()).items():
        try:
            ys = function()
        except Exception as error:
            if call not in by_doubling or not fails(by_doubling[call]):
                values[call] = repr(error)
        else:
            values[call] = [y.resolve_neg().clone() for y in (ys if isinstance(ys, tuple) else (ys,))]
    return values


def fails(function):
    try:
        function()
    except Exception:
        return True
    return False


if __name__ == "__main__":
    folder, *names = sys.argv[1:]
    torch.set_num_threads(1)
    import torch.distributed.tensor
    import torch.utils._device

    for i, name in enumerate(("nothing", *names)):
        if os.fork() == 0:
            torch.save(results(name), Path(folder, f"{i}.pt"))
            os._exit(0)
        os.wait()
