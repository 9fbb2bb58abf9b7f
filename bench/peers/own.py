"""rope_array's own backends, by their names in the suite."""

from functools import partial

from rope_array import RoPE, apply

from ._note import Note
from ._timed import NotServedError, Rotate, Timed, compiled, compiled_on_gpu, jitted

NOTES = {name: Note(f"`python -m rope_array check {name}`") for name in ("numpy", "torch", "jax")}


def targets() -> list[str]:
    return list(NOTES)


def timed(arrays):
    """Each call computes the angles, except in rows with *Rotation*, whose tables are made before."""
    rows, rope = {}, RoPE(head_dim=arrays.shape[-1], pairing=arrays.pairing)
    for label, inputs in (("rope_array NumPy", _numpy), ("rope_array PyTorch", _torch)):
        for call, make in _CALLS.items():
            rows[label + call] = lambda inputs=inputs, make=make: Timed(make(rope, *inputs(arrays)))
    by_array_api = lambda x, pos: apply(x, pos, rope, backend="array-api")  # noqa: E731
    rows["rope_array PyTorch, core, torch.compile"] = lambda: compiled(by_array_api, *_torch(arrays)[:2])
    rows["rope_array JAX, jax.jit"] = lambda: jitted(rope.apply, *_jax(arrays))
    rows["rope_array JAX, Rotation, jax.jit"] = lambda: _jitted_rotation(rope, *_jax(arrays))
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


def _rotation(rope, x, pos, out):
    rotation = rope.rotation(pos, like=x)
    return lambda: rotation.apply(x)


def _rotation_into(rope, x, pos, out):
    rotation = rope.rotation(pos, like=x)
    return lambda: rotation.apply(x, out=out)


_CALLS = {
    "": lambda rope, x, pos, out: lambda: apply(x, pos, rope),
    ", out=": lambda rope, x, pos, out: lambda: apply(x, pos, rope, out=out),
    ", Rotation": _rotation,
    ", Rotation, out=": _rotation_into,
    ", core": lambda rope, x, pos, out: lambda: apply(x, pos, rope, backend="array-api"),
}


def _jitted_rotation(rope, x, pos):
    return jitted(lambda rotation, x: rotation.apply(x), rope.rotation(pos, like=x), x)


def on_gpu(inputs):
    """Exact angles in every call, except in rows with *Rotation*, whose tables are made before."""
    return {
        "rope_array": lambda: _on_gpu(inputs, apply),
        "rope_array, Rotation": lambda: _rotation_on_gpu(inputs),
        "rope_array, out=x": lambda: _on_gpu(inputs, _in_place, in_place=True, gradient=False),
        "rope_array, CuPy": lambda: _cupy(inputs),
        'rope_array, backend="array-api"': lambda: _on_gpu(inputs, partial(apply, backend="array-api")),
        "rope_array, torch.compile": lambda: _compiled_on_gpu(inputs),
        "rope_array, torch.compile, reduce-overhead": lambda: _with_less_overhead(inputs),
    }


def _on_gpu(inputs, function, **options):
    pos, rope, axis = inputs.pos, inputs.rope, inputs.seq_axis
    return Rotate(lambda xs: function(xs, pos, rope, seq_axis=axis), inputs.case.layout, **options)


def _in_place(xs, pos, rope, seq_axis):
    return apply(xs, pos, rope, seq_axis=seq_axis, out=xs)


def _rotation_on_gpu(inputs):
    rotation, axis = inputs.rotation(), inputs.seq_axis
    return Rotate(lambda xs: rotation.apply(xs, seq_axis=axis), inputs.case.layout)


def _compiled_on_gpu(inputs, mode=None, **options):
    rope, axis, pos = inputs.rope, inputs.seq_axis, inputs.pos
    rotate = compiled_on_gpu(lambda xs, pos: rope.apply(xs, pos, seq_axis=axis), mode)
    return Rotate(lambda xs: rotate(xs, pos), inputs.case.layout, **options)


def _with_less_overhead(inputs):
    return _compiled_on_gpu(inputs, "reduce-overhead", gradient=False, graph=False)


def _cupy(inputs):
    """CuPy arrays of the same memory, by DLPack in every call: its host time counts both conversions.

    CuPy has no bfloat16. Its default stream is PyTorch's, so the events of PyTorch time it.
    """
    import cupy
    import torch

    if inputs.case.dtype != "float32":
        raise NotServedError("DLPack has no such dtype for CuPy")
    pos, rope, axis = cupy.from_dlpack(inputs.pos), inputs.rope, inputs.seq_axis

    def rotate(xs):
        ys = apply(tuple(cupy.from_dlpack(x) for x in xs), pos, rope, seq_axis=axis)
        return tuple(torch.from_dlpack(y) for y in ys)

    return Rotate(rotate, inputs.case.layout, gradient=False, graph=False)
