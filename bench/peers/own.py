"""rope_array's own backends, by their names in the suite."""

from ._note import Note
from ._timed import Timed, compiled, jitted

NAMES = ("numpy", "torch", "jax")
NOTES = {name: Note(f"`python -m rope_array check {name}`") for name in NAMES}


def targets() -> list[str]:
    return list(NAMES)


def timed(arrays):
    """Each call computes the angles, except in rows with *Rotation*, whose tables are made before."""
    rows = {}
    for label, inputs in (("rope_array NumPy", _numpy), ("rope_array PyTorch", _torch)):
        for call, make in _CALLS.items():
            rows[label + call] = lambda inputs=inputs, make=make: make(arrays, *inputs(arrays))
    rows["rope_array NumPy, backend=numpy"] = lambda: _by("numpy", arrays, *_numpy(arrays))
    rows["rope_array PyTorch, core, torch.compile"] = lambda: _compiled(arrays, *_torch(arrays))
    rows["rope_array JAX, jax.jit"] = lambda: _jitted(arrays, *_jax(arrays))
    rows["rope_array JAX, Rotation, jax.jit"] = lambda: _jitted_rotation(arrays, *_jax(arrays))
    return rows


def _numpy(arrays):
    return _flat(arrays, arrays.numpy()), arrays.pos, _flat(arrays, arrays.out())


def _torch(arrays):
    import torch

    return _flat(arrays, arrays.torch()), torch.from_numpy(arrays.pos), _flat(arrays, arrays.torch_out())


def _jax(arrays):
    import jax.numpy as jnp

    return _flat(arrays, arrays.jax()), jnp.asarray(arrays.pos, "int32")


def _flat(arrays, x):
    return x[0] if arrays.flat else x


def _rope(arrays):
    import rope_array as ra

    return ra.RoPE(head_dim=arrays.shape[-1], pairing=arrays.pairing)


def _allocating(arrays, x, pos, out):
    apply, rope = _apply(), _rope(arrays)
    return Timed(lambda: apply(x, pos, rope))


def _into(arrays, x, pos, out):
    apply, rope = _apply(), _rope(arrays)
    return Timed(lambda: apply(x, pos, rope, out=out))


def _rotation(arrays, x, pos, out):
    rotation = _rope(arrays).rotation(pos, like=x)
    return Timed(lambda: rotation.apply(x))


def _rotation_into(arrays, x, pos, out):
    rotation = _rope(arrays).rotation(pos, like=x)
    return Timed(lambda: rotation.apply(x, out=out))


def _core(arrays, x, pos, out):
    return _by("array-api", arrays, x, pos, out)


def _by(backend, arrays, x, pos, out):
    apply, rope = _apply(), _rope(arrays)
    return Timed(lambda: apply(x, pos, rope, backend=backend))


def _apply():
    import rope_array as ra

    return ra.apply


_CALLS = {
    "": _allocating,
    ", out=": _into,
    ", Rotation": _rotation,
    ", Rotation, out=": _rotation_into,
    ", core": _core,
}


def _compiled(arrays, x, pos, out):
    apply, rope = _apply(), _rope(arrays)
    return compiled(lambda x, pos: apply(x, pos, rope, backend="array-api"), x, pos)


def _jitted(arrays, x, pos):
    return jitted(_rope(arrays).apply, x, pos)


def _jitted_rotation(arrays, x, pos):
    return jitted(lambda rotation, x: rotation.apply(x), _rope(arrays).rotation(pos, like=x), x)
