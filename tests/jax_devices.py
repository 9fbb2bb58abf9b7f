"""Scripts for new processes of JAX: eight devices on the CPU, or two processes of two devices each.

Each function needs the environment that test_jax.py sets before JAX starts.
"""

import functools
import re
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import rope_array as ra
from rope_array._backends.jax._custom_call import description
from rope_array.testing import Target, run_checks
from rope_array.testing._checks import checks
from rope_array.testing._contract import assert_contract
from rope_array.testing._find_target import resolve
from rope_array.testing._judge import Judge
from rope_array.testing._outcome import FAILED, outcome_of

HALF = {"pairing": "half", "base": 500_000.0}
PARTIAL = {**HALF, "rotary_dim": 12}
INTERLEAVED = {"rotary_dim": 12}
ROPE = ra.RoPE(16, **HALF)
X = np.random.default_rng(0).standard_normal((8, 16, 8, 16)).astype("float32")
HEADS_FIRST = X.swapaxes(1, 2)
POS = (np.arange(128).reshape(8, 16) * 1_000_003).astype("int32")
SPLIT = P("a", "b", "c"), P("a", "b")  # batches, sequences and heads of x, and of positions
COMMUNICATION = ("all-gather", "all-reduce", "all-to-all", "collective", "reduce-scatter", "send(", "recv(")


def judge(y, x, pos, **fields):
    assert_contract(np.asarray(y), np.asarray(x), np.asarray(pos), flushes=True, **fields)


def mesh_of(*sizes, axis_type=AxisType.Auto):
    return jax.make_mesh(sizes, ("a", "b", "c")[: len(sizes)], axis_types=(axis_type,) * len(sizes))


def put(array, mesh, *spec):
    return jax.device_put(array, NamedSharding(mesh, P(*spec)))


def gradient(rotate, x, pos):
    return jax.vjp(lambda x: rotate(x, pos), x)[1](x)[0]


def compiled_without_communication(function, *arguments):
    """Compile a function; assert that devices exchange nothing, and that the kernel, if built, is called."""
    compiled = jax.jit(function).lower(*arguments).compile()
    text = compiled.as_text()
    assert not [name for name in COMMUNICATION if name in text]
    assert ('custom_call_target="rope_array_rotate_2"' in text) == ("the C++ kernel, " in description()), text
    return compiled


# ---- one function for each test ----


def split_arrays_need_no_communication():
    """Each device rotates its part, by positions, which may be whole, and by tables."""
    whole_positions = mesh_of(8), P(None, "a"), P(), INTERLEAVED
    for mesh, x_spec, pos_spec, fields in ((mesh_of(2, 2, 2), *SPLIT, PARTIAL), whole_positions):
        rope, x, pos = ra.RoPE(16, **fields), put(X, mesh, *x_spec), put(POS, mesh, *pos_spec)
        rotate = functools.partial(rope.apply, seq_axis=1)
        programs = [
            (rotate, False),
            (lambda x, pos, rope=rope: rope.rotation(pos, like=x).apply(x, seq_axis=1), False),
            (functools.partial(gradient, rotate), True),
        ]
        if pos_spec != P():
            places = {"mesh": mesh, "in_specs": (x_spec, pos_spec), "out_specs": x_spec}
            programs.append((jax.shard_map(rotate, **places), False))
        for program, inverse in programs:
            y = compiled_without_communication(program, x, pos)(x, pos)
            assert y.sharding.is_equivalent_to(x.sharding, 4), y.sharding
            judge(y, X, POS, seq_axis=1, inverse=inverse, **fields)
        for positions, numbers in ((pos, POS), (7, 7), (range(16), range(16))):
            y = rotate(x, positions)
            assert y.sharding.is_equivalent_to(x.sharding, 4), y.sharding
            judge(y, X, numbers, seq_axis=1, **fields)


def explicit_axes_keep_their_type():
    """With explicit mesh axes, results and gradients have x's sharding in their type."""
    specs = [SPLIT, (P(None, ("a", "c")), P())]
    forward = functools.partial(ra.RoPE(16, **PARTIAL).apply, seq_axis=1)
    backward = functools.partial(gradient, forward)
    with jax.set_mesh(mesh_of(2, 2, 2, axis_type=AxisType.Explicit)):
        for x_spec, pos_spec in [*specs, (P(), P("a", "b"))]:
            x, pos = jax.device_put(X, x_spec), jax.device_put(POS, pos_spec)
            for function, inverse in ((forward, False), (backward, True)):
                if x_spec != P():  # else positions are gathered, as x is whole
                    compiled_without_communication(function, x, pos)
                y = jax.jit(function)(x, pos)
                assert jax.typeof(y) == jax.typeof(x)
                judge(y, X, POS, seq_axis=1, inverse=inverse, **PARTIAL)


def explicit_axes_of_other_arrays():
    """The mesh of the positions is enough; coordinates, batches of positions and features may be split."""
    heads_first, mesh = jnp.asarray(HEADS_FIRST), mesh_of(2, 4, axis_type=AxisType.Explicit)
    with jax.set_mesh(mesh):
        judge(ROPE.apply(heads_first, range(16)), heads_first, range(16), **HALF)
        judge(ROPE.rotation(range(16), like=heads_first).apply(heads_first), heads_first, range(16), **HALF)
        judge(gradient(ROPE.apply, heads_first, range(16)), heads_first, range(16), inverse=True, **HALF)
        axes = {"coordinates": [0, 0, 0, 0, 1, 1, 1, 1], "widths": [8, 8]}
        axial, pairs = ra.RoPE(16, axes=ra.Axes.axial(8, 8)), np.stack([POS, POS[::-1]], -1)
        split = jax.device_put(pairs, P(None, None, "a"))
        judge(axial.apply(heads_first, split), heads_first, pairs, axes=axes)
        judge(axial.rotation(split, like=heads_first).apply(heads_first), heads_first, pairs, axes=axes)
        mapped = jax.jit(jax.vmap(lambda pos: ROPE.apply(heads_first[0, 0], pos)))
        split = jax.device_put(POS, P("a"))
        assert jax.typeof(mapped(split)).sharding.spec[0] == "a"
        assert "all-gather" not in mapped.lower(split).compile().as_text()
        # Split features are gathered, rotated and split again.
        for fields, spec in (
            (HALF, P(None, None, None, "b")),
            (INTERLEAVED, P("a", None, None, "b")),
            ({**HALF, "rotary_dim": 0}, P(None, None, None, ("a", "b"))),
        ):
            rope, split = ra.RoPE(16, **fields), jax.device_put(heads_first, spec)
            y, pull = jax.vjp(jax.jit(lambda x, rope=rope: rope.apply(x, range(16))), split)
            tables = rope.rotation(range(16), like=split).apply(split)
            (dx,) = pull(split)
            assert jax.typeof(y) == jax.typeof(dx) == jax.typeof(tables) == jax.typeof(split)
            for rotated, inverse in ((y, False), (tables, False), (dx, True)):
                judge(rotated, heads_first, range(16), inverse=inverse, **fields)
    judge(jax.jit(ROPE.apply)(heads_first, put(POS, mesh, "a")), heads_first, POS, **HALF)


def other_places_in_a_program():
    """Constraints, two meshes, lowering without devices, split features, uneven parts, an old partitioner."""
    x, mesh = HEADS_FIRST, mesh_of(2, 4)

    def constrained(x, place):
        return ROPE.apply(jax.lax.with_sharding_constraint(x, place), POS)

    with jax.set_mesh(mesh):
        judge(jax.jit(lambda x: constrained(x, P("a")))(x), x, POS, **HALF)
    two_meshes = jax.jit(lambda x, pos, z: (ROPE.apply(x, pos), z * 2))
    judge(two_meshes(put(x, mesh, "a"), POS, put(x, mesh_of(8), "a"))[0], x, POS, **HALF)
    place = NamedSharding(mesh.abstract_mesh, P("a"))
    described = [jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=place) for array in (x, POS)]
    for platform in ("cpu", "cuda", "tpu"):
        jax.jit(ROPE.apply).trace(*described).lower(lowering_platforms=(platform,))
    to_all = export.export(jax.jit(ROPE.apply), platforms=("cpu", "cuda", "tpu"))
    to_all(put(x, mesh, "a"), put(POS, mesh, "a")).serialize(vjp_order=2)
    for spec in (("a", None, None, "b"), (None, None, None, ("a", "b"))):
        judge(jax.jit(ROPE.apply)(put(x, mesh, *spec), POS), x, POS, **HALF)
    three_heads, place = x[:, :3], NamedSharding(mesh, P(None, "b"))  # 3 heads on 4 devices
    judge(jax.jit(lambda x: constrained(x, place))(three_heads), three_heads, POS, **HALF)
    jax.config.update("jax_use_shardy_partitioner", False)
    for spec, of_pos in ((("a", "b"), ("a",)), ((), ("a",))):
        judge(jax.jit(ROPE.apply)(put(x, mesh, *spec), put(POS, mesh, *of_pos)), x, POS, **HALF)
    jax.config.update("jax_use_shardy_partitioner", True)


def results_stay_on_the_device_of_x():
    device, other_device = jax.devices()[3], jax.devices()[2]
    x = jax.device_put(X, device)
    for pos in (7, 0.5, range(16), POS, jnp.asarray(POS), jax.device_put(POS, device)):
        rotation = ROPE.rotation(pos, like=x)
        y = ROPE.apply(x, pos, seq_axis=1)
        arrays = [y, rotation.cos, rotation.apply(x, seq_axis=1)]
        arrays.append(jax.jit(lambda x, pos=pos: ROPE.apply(x, pos, seq_axis=1))(x))
        assert {device for array in arrays for device in array.devices()} == {device}, repr(pos)
    judge(y, X, POS, seq_axis=1, **HALF)
    assert ROPE.apply(x, POS, seq_axis=1, backend="array-api").devices() == {device}
    assert ROPE.matrix(3, like=x).devices() == {device}
    for xs, pos in ((x, jax.device_put(POS, other_device)), ((x, jax.device_put(X, other_device)), 3)):
        with pytest.raises(ra.ArrayTypeError, match=re.escape(repr(other_device))):
            ROPE.apply(xs, pos, seq_axis=1)


def run(*functions):
    warnings.simplefilter("error")
    assert len(jax.devices()) == 8
    for function in functions:
        function()


SHARDED = (split_arrays_need_no_communication, explicit_axes_keep_their_type)
OTHERS = (explicit_axes_of_other_arrays, other_places_in_a_program, results_stay_on_the_device_of_x)


def run_suite(*names):
    """Run checks on eight devices; one detects code that makes positions of its part's length."""
    report = run_checks("jax:sharded", only=names)
    assert report.ok, report
    claims = {"fields": (), "dtypes": ("float32",), "angles": "exact", "furthest": 2**31 - 1}
    library = resolve("jax:sharded").library
    wrong = Target(
        lambda x, pos: ra.apply(x, pos - pos[..., :1]), name="wrong", library=library, declared=True, **claims
    )
    (check,) = (check for check in checks() if check.name == "positions_of_a_shard")
    outcome, text = outcome_of(check, Judge(wrong))
    assert outcome == FAILED
    assert "an arange over its own length" in text


def run_process(address, number):
    """Rotate the parts of one of two processes, without communication."""
    jax.config.update("jax_num_cpu_devices", 2)
    jax.distributed.initialize(address, num_processes=2, process_id=number)
    assert len(jax.devices()) == 4
    assert len(jax.local_devices()) == 2
    x_whole, pos_whole, mesh = X[:4, :, :2], POS[:4], mesh_of(2, 2)
    place = NamedSharding(mesh, P("a", "b"))
    x, pos = (
        jax.make_array_from_callback(array.shape, place, lambda index, array=array: array[index])
        for array in (x_whole, pos_whole)
    )

    rotate = functools.partial(ROPE.apply, seq_axis=1)
    y = compiled_without_communication(rotate, x, pos)(x, pos)
    assert y.sharding.is_equivalent_to(x.sharding, 4)
    for shard in y.addressable_shards:
        judge(shard.data, x_whole[shard.index], pos_whole[shard.index[:2]], seq_axis=1, **HALF)
    jax.distributed.shutdown()
