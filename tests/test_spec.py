"""RoPE as a value: fields, frequencies, fixed-point words, the memo, and the dense matrix."""

import copy
import dataclasses
import gc
import importlib
import itertools
import math
import pickle

import child
import mpmath
import numpy as np
import oracle
import pytest
from compare import words
from refusals import refusals, refused
from ropes import WITHOUT_AXES, fields_of
from test_errors import Long

import rope_array as ra
from rope_array import RoPE, SpecError
from rope_array._spec.frequencies import Scaling
from rope_array._spec.plan import Plan
from rope_array._spec.spec import Fields, plan_of
from rope_array.testing import rotation_matrix
from rope_array.testing._contract import AT_FLOATS, compute_dtype, eps, ulp
from rope_array.testing._library_target import as_records

pytestmark = pytest.mark.neutral

DEFAULTS = {"head_dim": 8, "base": 10000.0, "rotary_dim": 8, "rotary_start": 0, "pairing": "interleaved"}
DEFAULTS |= dict.fromkeys(["out_pairing", "scaling", "axes", "inv_freq", "attention_factor"])
DEFAULTS |= {"angles": "exact", "max_position": None}
FIELDS = [*DEFAULTS]

ROPES = {name: {"head_dim": 16, **as_records(fields)} for name, fields in fields_of(*WITHOUT_AXES).items()}
ROPES |= {
    "odd": {"head_dim": 7, "rotary_dim": 6, "pairing": "half", "out_pairing": "interleaved"},
    "limited": {"head_dim": 16, "max_position": 10},
    "given, exact": {"head_dim": 4, "inv_freq": (1.0, 0.25)},
    "given, float32": {"head_dim": 4, "inv_freq": (1.0, 0.25), "angles": "float32"},
}

# ---- a value ----


def test_defaults_are_resolved():
    """The names are public: adding or removing a field changes this test."""
    assert [field.name for field in dataclasses.fields(RoPE)] == [*Fields.__annotations__] == FIELDS
    rope = RoPE(8)
    assert {name: getattr(rope, name) for name in FIELDS} == DEFAULTS
    assert rope.amplitude == 1.0
    assert RoPE(8, rotary_start=2).rotary_dim == 6
    assert RoPE(8, rotary_start=8).rotary_dim == 0
    assert RoPE(8, pairing="half").out_pairing is None
    assert RoPE(8, out_pairing="half").pairing == "interleaved"
    assert RoPE(8, rotary_dim=0).frequencies == ()
    assert RoPE(8, attention_factor=2).amplitude == 2.0
    spelled = RoPE(**{**DEFAULTS, "out_pairing": "interleaved"})
    assert spelled == RoPE(8)
    assert hash(spelled) == hash(RoPE(8))


class Half(str):
    def __str__(self):
        return "neither"


def test_fields_are_plain_python_values():
    rope = RoPE(
        np.int64(8),
        base=np.float32(10000),
        rotary_dim=np.int8(4),
        rotary_start=np.uint8(2),
        pairing=Half("half"),
        out_pairing=np.str_("interleaved"),
        inv_freq=[np.float32(1), 2],
        attention_factor=np.float16(1.5),
        angles=np.str_("exact"),
        max_position=np.int32(5),
    )
    for name in set(FIELDS) - {"scaling", "axes"}:  # records: see test_scaling.py and test_maps.py
        value = getattr(rope, name)
        assert type(value) in (int, float, str, tuple), f"{name} is a {type(value)}"
    assert {type(number) for number in (*rope.inv_freq, *rope.frequencies, rope.amplitude)} == {float}
    narrow = {"rotary_dim": 4, "rotary_start": 2, "pairing": "half", "out_pairing": "interleaved"}
    assert rope == RoPE(8, **narrow, inv_freq=(1.0, 2.0), attention_factor=1.5, max_position=5)


def test_every_field_counts_in_equality():
    ropes = [
        *(RoPE(8), RoPE(10), RoPE(8, base=10001.0), RoPE(8, rotary_dim=6)),
        *(RoPE(8, rotary_dim=6, rotary_start=1), RoPE(8, pairing="half"), RoPE(8, out_pairing="half")),
        *(RoPE(8, pairing="half", out_pairing="interleaved"), RoPE(8, inv_freq=RoPE(8).frequencies)),
        *(RoPE(8, scaling=rule) for rule in (ra.Linear(1.0), ra.Linear(2.0), ra.NTKAware(2.0))),
        *(RoPE(8, axes=ra.Axes.axial(4, 4, blocks=blocks)) for blocks in (False, True)),
        *(RoPE(8, axes=ra.Axes.chunked(1, 3)), RoPE(8, attention_factor=1.0), RoPE(8, angles="float32")),
        RoPE(8, max_position=10),
    ]
    for a, b in itertools.combinations(ropes, 2):
        assert a != b
    assert len(set(ropes)) == len(ropes)
    assert RoPE(8) != 8
    assert RoPE(8) != dataclasses.astuple(RoPE(8))
    assert RoPE(4, max_position=10)._plan == RoPE(4)._plan  # one compiled program


def test_frozen():
    rope = RoPE(8)
    for name in [*FIELDS, "amplitude", "frequencies", "anything"]:
        with pytest.raises(AttributeError):
            setattr(rope, name, getattr(rope, name, 1))
        with pytest.raises(AttributeError):
            delattr(rope, name)
    assert rope == RoPE(8)


def test_repr_shows_the_fields_that_differ():
    assert repr(RoPE(8)) == "RoPE(head_dim=8)"
    assert repr(RoPE(8, rotary_dim=6, rotary_start=2)) == "RoPE(head_dim=8, rotary_start=2)"
    assert repr(RoPE(8, rotary_dim=4)) == "RoPE(head_dim=8, rotary_dim=4)"
    assert repr(RoPE(8, scaling=ra.Llama3(factor=4.0), base=5e5)) == (
        "RoPE(head_dim=8, base=500000.0, scaling=Llama3(factor=4.0, low_freq_factor=1.0, "
        "high_freq_factor=4.0, original_max_position_embeddings=8192.0))"
    )
    assert repr(RoPE(8, axes=ra.Axes.chunked(2, 2))).count("rotary_dim") == 0


# ---- max_position ----

BEYOND = [11, 11.0, 10.5, range(9, 12), range(11, 8, -1), [8, 9, 11], (8.0, 10.5, 9.0), np.float32(11)]
BEYOND += [np.array([11, 1, 2]), np.array([np.nan, 11.0, 1.0])]
LIMITED, ROWS = RoPE(4, max_position=10), np.ones((3, 4), np.float32)


@pytest.mark.parametrize("pos", BEYOND, ids=repr)
def test_positions_beyond_max_position_are_refused(pos):
    for _ in range(2):  # the second time the kernel has prepared the plan
        with pytest.raises(ra.PositionError, match="max_position=10"):
            LIMITED.apply(ROWS, pos)


def test_every_entry_point_refuses_positions_beyond_max_position():
    pos, grid = [8, 9, 11], [[1, 2], [3, 4], [5, 11]]
    for call in (
        lambda: ra.apply(ROWS, pos, LIMITED),
        lambda: ra.apply(ROWS, pos, max_position=10),
        lambda: LIMITED.apply(ROWS, pos, inverse=True),
        lambda: LIMITED.rotation(pos, like=ROWS),
        lambda: LIMITED.rotation_xpos(pos, like=ROWS),
        lambda: LIMITED.rotation_mixed(grid, like=ROWS, inv_freq=np.ones((2, 2, 2))),
        lambda: ra.apply(ROWS, grid, axes=ra.Axes.chunked(1, 1), max_position=10),
    ):
        with pytest.raises(ra.PositionError, match="position 11"):
            call()


def test_positions_up_to_max_position_are_served():
    for pos in (10, range(8, 11), [10.0, 1, 2], np.array([1, 2, 10]), -50):
        np.testing.assert_array_equal(LIMITED.apply(ROWS, pos), RoPE(4).apply(ROWS, pos))
    assert LIMITED.apply(ROWS[:0], range(0)).shape == (0, 4)
    ring = [1, 2]
    ring.append(ring)
    with pytest.raises(ra.ShapeError, match=r"holds itself|ragged"):
        LIMITED.apply(ROWS, ring)


@pytest.mark.library("jax")
def test_max_position_of_positions_on_a_device():
    """Positions of NumPy are read, positions on a device are not."""
    jnp = importlib.import_module("jax.numpy")
    with pytest.raises(ra.PositionError):
        LIMITED.apply(jnp.ones((3, 4)), np.array([1, 2, 11]))
    LIMITED.apply(jnp.ones((3, 4)), jnp.array([1, 2, 11]))


COPIES = {"copy": copy.copy, "deepcopy": copy.deepcopy, "replace": lambda rope: dataclasses.replace(rope)}
COPIES |= {f"pickle {n}": lambda rope, n=n: pickle.loads(pickle.dumps(rope, n)) for n in (0, 2, 5)}


@pytest.mark.parametrize("fields", ROPES.values(), ids=ROPES)
def test_copies_are_equal_and_work(fields):
    rope = RoPE(**fields)
    x = np.arange(2.0 * rope.head_dim).reshape(2, -1)
    written = eval(repr(rope), vars(ra) | {"YaRN": ra.YaRN})
    for copied in (*(method(rope) for method in COPIES.values()), written):
        assert type(copied) is RoPE
        assert copied == rope
        assert hash(copied) == hash(rope)
        assert copied.frequencies == rope.frequencies
        np.testing.assert_array_equal(copied.apply(x, [3, 4]), rope.apply(x, [3, 4]))


def test_another_process_with_other_decimal_contexts_loads_ropes_and_types_of_rotations():
    script = """
        import decimal, pickle, sys
        import numpy as np
        import rope_array as ra

        decimal.DefaultContext.rounding = decimal.ROUND_UP
        decimal.DefaultContext.traps[decimal.Inexact] = True
        traps = [decimal.FloatOperation, decimal.Inexact]
        decimal.setcontext(decimal.Context(prec=5, rounding=decimal.ROUND_DOWN, traps=traps))
        ropes, types = pickle.loads(bytes.fromhex(sys.argv[1]))
        for rope in ropes:
            print(rope, [omega.hex() for omega in rope.frequencies], [w.values for w in rope._plan.turns_q96])
        rotation = ra.RoPE(8, attention_factor=2.0).rotation(0, like=np.ones(8))
        assert types == [ra.Rotation, type(rotation), type(rotation.inverse())]
    """
    ropes = [RoPE(**fields) for fields in ROPES.values()]
    ropes += [RoPE(128, base=7.3), RoPE(64, scaling=ra.Linear(3.7)), RoPE(2, inv_freq=(1.1,))]
    rotation = RoPE(8, attention_factor=2.0).rotation(0, like=np.ones(8))
    types = [ra.Rotation, type(rotation), type(rotation.inverse())]
    assert pickle.loads(pickle.dumps(types)) == types
    printed = child.run(script, pickle.dumps((ropes, types)).hex())
    assert printed.splitlines() == [
        f"{rope} {[omega.hex() for omega in rope.frequencies]} {[w.values for w in rope._plan.turns_q96]}"
        for rope in ropes
    ]


def test_pickles_hold_the_fields_only():
    """The version that loads a pickle computes words and tables again."""
    assert len(pickle.dumps(RoPE(512))) < 400


@dataclasses.dataclass(frozen=True, repr=False)
class Labelled(RoPE):
    label: str = "none"


class OfConfig(RoPE):
    def __init__(self, config, theta):
        super().__init__(config["head_dim"], base=theta)


def test_a_subclass_has_fields_or_parameters_of_its_own():
    for method in COPIES.values():
        copied = method(Labelled(8, base=5.0, label="text"))
        assert (type(copied), copied.label, copied.base) == (Labelled, "text", 5.0)
    for rope in (OfConfig({"head_dim": 8}, 5.0), OfConfig(config={"head_dim": 8}, theta=5.0)):
        assert (rope.head_dim, rope.base) == (8, 5.0)
    with pytest.raises(SpecError, match="lable"):
        Labelled(8, lable="text")


class Slower(ra.Linear):
    def _stretched(self, omegas, base, width):
        return [omega / 100 for omega in omegas]


@dataclasses.dataclass(frozen=True)
class Padded(ra.Axes):
    def sources(self, rotary_dim):
        return [None] * len(self.coordinates)


X, AXES = np.ones((3, 8)), Padded((0, 0, 1, 1))


@refusals("spec")
def test_refused(call, error, words):
    refused(error, words, lambda: eval(call))


def test_a_base_class_of_rules_may_have_subclasses():
    class Own(Scaling):
        def _stretched(self, omegas, base, width):
            return [omega / 100 for omega in omegas]

    assert RoPE(4, scaling=Own()).frequencies == (0.01, 0.0001)


# Bodies of subclasses of RoPE with names that no rotation reads, and the names.
UNREAD = {
    "frequencies": {"frequencies": property(lambda rope: (1.0,) * 4)},
    "amplitude": {"amplitude": 2.0},
    "base": {"base": 5e5},
    "pairing": {"pairing": "half", "__annotations__": {"pairing": str}},
}


@pytest.mark.parametrize(("name", "body"), UNREAD.items(), ids=UNREAD)
def test_names_of_a_subclass_that_no_rotation_reads_are_refused(name, body):
    with pytest.raises(SpecError, match=f"Own (defines|sets) {name}\\b"):
        type("Own", (RoPE,), body)(8)


def test_a_subclass_may_have_other_defaults():
    @dataclasses.dataclass(frozen=True, repr=False, eq=False)
    class Llama(RoPE):
        base: float = 5e5

    assert Llama(8).frequencies == RoPE(8, base=5e5).frequencies
    assert Llama(8, base=5.0).base == 5.0


# ---- frequencies ----

EXPLICIT = (0.0, -0.0, 1.0, -2.5, 0.1, 1e300, -1e300, 1e-300, 5e-324, math.pi)


def test_explicit_frequencies_are_taken_exactly():
    rope = RoPE(2 * len(EXPLICIT), inv_freq=EXPLICIT)
    assert [omega.hex() for omega in rope.frequencies] == [omega.hex() for omega in EXPLICIT]
    assert RoPE(4, base=5.0, inv_freq=(3, 2)).frequencies == (3.0, 2.0)
    narrow = RoPE(4, inv_freq=(0.1, 1 / 3), angles="float32").frequencies
    assert narrow == (float(np.float32(0.1)), float(np.float32(1 / 3)))


def test_arrays_may_be_wider_than_the_rotated_slice():
    with pytest.raises(SpecError, match="rotary_dim of at most 65536"):
        ra.apply(np.broadcast_to(np.float32(1), (1, 5_000_000)), 3)
    assert RoPE(5_000_000, rotary_dim=4).frequencies == RoPE(4).frequencies


def test_lengths_of_sequences_are_not_trusted():
    """A class may return a wrong length, or iterate for ever."""

    class Endless(tuple):
        def __iter__(self):
            return itertools.repeat(1.0)

    with pytest.raises(SpecError, match="more than 32768"):
        RoPE(4, inv_freq=Endless((1.0, 2.0)))
    assert RoPE(4, inv_freq=Long([1.0, 2.0])) == RoPE(4, inv_freq=(1.0, 2.0))


# ---- fixed-point words ----

FINE = mpmath.MPContext()
FINE.dps = 500  # 1e300 · 2^96 / 2π has 329 digits before the point


def word(omega, bits):
    """round(ω/2π · 2^bits), by mpmath."""
    return int(FINE.nint(FINE.ldexp(omega, bits) / (2 * FINE.pi)))


def signed64(number):
    number %= 2**64
    return number - 2**64 if number >= 2**63 else number


def check_words(plan, omegas):
    words = [word(omega, 96) for omega in omegas]
    upper, lower = plan.turns_q96
    assert list(upper.values) == [signed64(w >> 32) for w in words]
    assert list(lower.values) == [w % 2**32 for w in words]
    assert list(plan.turns_q64.values) == [signed64(word(omega, 64)) for omega in omegas]


def powers(width, base):
    """base^(-2i/width) as mpf, one for each pair."""
    return [FINE.power(FINE.mpf(base), FINE.mpf(-2 * i) / width) for i in range(width // 2)]


@pytest.mark.parametrize("base", [10000.0, 500_000.0, 1e6, 1e7, 12345.678, 150.0, 2.0, 1.0, 0.5, 1e-3, 1e300])
def test_frequencies_and_words_are_correctly_rounded(base):
    for width in (2, 4, 6, 10, 64, 80, 128, 256):
        rope, omegas = RoPE(width, base=base), powers(width, base)
        assert rope.frequencies == tuple(map(oracle.to_float, omegas))
        check_words(rope._plan, omegas)
        check_words(rope._plan.inverse, [-omega for omega in omegas])


def test_words_of_explicit_frequencies_and_of_linear_scaling():
    rng = np.random.default_rng(0)
    random = (rng.choice([-1, 1], 200) * 10.0 ** rng.uniform(-30, 30, 200)).tolist()
    for omegas in (EXPLICIT, random):
        check_words(RoPE(2 * len(omegas), inv_freq=omegas)._plan, [*map(FINE.mpf, omegas)])
    scaled = RoPE(8, base=12345.678, scaling=ra.Linear(3.3))
    check_words(scaled._plan, [omega / FINE.mpf(3.3) for omega in powers(8, 12345.678)])


def test_plans_are_equal_by_value():
    """A plan is a static argument of jax.jit: equal plans share a program, other plans must not."""
    plans = [RoPE(**fields)._plan for fields in ROPES.values()]
    again = [RoPE(**fields)._plan for fields in ROPES.values()]
    assert plans == again
    assert list(map(hash, plans)) == list(map(hash, again))
    assert len(set(plans)) == len(plans) - 1  # a limit is no part of a plan
    # 1/100 and the float64 nearest to it are equal frequencies, but different words of 96 bits.
    assert RoPE(4).frequencies == RoPE(4, inv_freq=(1.0, 0.01)).frequencies
    assert RoPE(4)._plan != RoPE(4, inv_freq=(1.0, 0.01))._plan


# ---- the memo of specs ----


def test_a_value_is_refused_after_an_equal_value():
    """True equals 1 and 4.0 equals 4 as keys of a dictionary, but not as values of a field."""
    x = np.ones((2, 4))
    for good, bad in (
        ({"rotary_dim": 2}, {"rotary_dim": 2.0}),
        ({"base": 1}, {"base": True}),
        ({"attention_factor": 1}, {"attention_factor": True}),
        ({"inv_freq": (1.0, 1.0)}, {"inv_freq": (1.0, True)}),
        ({"head_dim": 4}, {"head_dim": 4.0}),
        ({"rotary_dim": 0, "head_dim": 4}, {"rotary_dim": False, "head_dim": 4}),
    ):
        with pytest.raises(SpecError):
            ra.apply(x, 0, **bad)
        ra.apply(x, 0, **good)
        with pytest.raises(SpecError):
            ra.apply(x, 0, **bad)


def test_the_memo_of_specs_has_an_end():
    """test_imports.py has the results of more specs than it holds."""

    def plans():
        gc.collect()
        return sum(type(instance) is Plan for instance in gc.get_objects())

    before = plans()
    for base in [*range(1, 300)] * 2:
        ra.apply(np.ones((2, 4)), [3, 4], base=float(base))
        plan_of(2, inv_freq=[float(base)])  # a list has no hash
    assert plans() - before <= 2 * 256  # each plan has an inverse


# ---- the matrix ----

MATRICES = [
    {"head_dim": 10, "rotary_dim": 4, "rotary_start": 3, "pairing": "half", "out_pairing": "interleaved"},
    {"head_dim": 7, "rotary_dim": 4, "rotary_start": 2, "out_pairing": "half", "attention_factor": 0.75},
    {"head_dim": 4, "attention_factor": 1.1386294361119891, "inv_freq": (1.5, -0.25)},
    {"head_dim": 5, "rotary_dim": 0, "attention_factor": 3.0},
]
POSITIONS = [-(2**31), [[0, 1], [2**31 - 1, -4096]], range(3), np.array([3, 4], np.int32), 0.5]


def assert_matrix(matrix, pos, dtype, fields):
    """Each entry keeps the contract's bound for a rotated unit vector: |pair| = 1."""
    pos = np.asarray(pos)
    exact = rotation_matrix(pos, **fields)
    assert matrix.shape == exact.shape == (*pos.shape, fields["head_dim"], fields["head_dim"])
    matrix = matrix.astype(np.float64)
    compute = compute_dtype(dtype)
    slack = 0.0 if pos.dtype.kind in "iu" else AT_FLOATS[compute]
    error = (2.5 * eps(compute) + slack) * fields.get("attention_factor", 1.0)
    bound = error + 0.5 * ulp(np.abs(exact) + error, dtype)
    bound[(exact == 0) | (exact == 1)] = 0.0  # outside of pairs, and at position 0
    assert (np.abs(matrix - exact) <= bound).all()


@pytest.mark.parametrize("fields", MATRICES, ids=words)
def test_matrix_against_the_definition(lib, float_dtype, fields):
    like = lib.asarray(np.ones(3), float_dtype)
    for pos in POSITIONS:
        positions = lib.asarray(pos) if isinstance(pos, np.ndarray) else pos
        by_default = (lib.name, float_dtype) == ("numpy", "float64")
        rope = RoPE(**fields)
        matrix = rope.matrix(positions) if by_default else rope.matrix(positions, like=like)
        assert type(matrix) is type(like)
        assert matrix.dtype == like.dtype
        assert_matrix(lib.to_numpy(matrix), pos, float_dtype, fields)
