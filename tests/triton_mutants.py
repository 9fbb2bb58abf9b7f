"""Mutants of the Triton kernel and of its launches: one fault each, and the test that finds it."""

import contextlib
import importlib.util
import inspect
from typing import NamedTuple

from rope_array._backends import _gpu
from rope_array._backends.torch import _gpu_kernel, _launch, _triton_kernel


class Mutant(NamedTuple):
    """A fault: text of a module replaced. A test of test_triton.py or a call of triton_cases.py finds it."""

    name: str
    module: object
    old: str
    new: str
    test: str


_KERNEL = [
    (
        "no mask of pairs",
        "half_present = present & (pair < PAIRS)[None, None, :]",
        "half_present = present",
        "first features, by tables",
    ),
    (
        "no mask of heads",
        "(head < heads)",
        "(head < heads + 1)",
        "test_nothing_outside_of_the_result_is_written",
    ),
    (
        "no mask of tokens",
        "present = (token < seq)[:, None, None]",
        "present = (token < seq + 1)[:, None, None]",
        "test_nothing_outside_of_the_result_is_written",
    ),
    ("a lost carry", " + carry.to(tl.int64)", "", "float64 half"),
    ("a lost high word", " + (numbers >> 32) * lower", "", "float64 beyond int32"),
    (
        "an unsigned low word",
        "(numbers & 0xFFFFFFFF) * lower",
        "numbers * lower",
        "float64 at the ends of int32",
    ),
    ("a phase of 31 bits", "((numbers * turns) >> 32)", "((numbers * turns) >> 31)", "half"),
    (
        "positions of 32 bits",
        "numbers, words, pair, PAIRS, REAL)\n        if",
        "numbers.to(tl.int32), words, pair, PAIRS, REAL)\n        if",
        "float32 beyond int32",
    ),
    ("a wrong sign of sin", "b * cos + a * sin", "b * cos - a * sin", "half"),
    (
        "the sign of the next quadrant",
        "cos_sign = (quadrant + (1 << 30))",
        "cos_sign = (quadrant + (1 << 29))",
        "half",
    ),
    (
        "no quadrants of float64",
        "odd = (quadrant & (1 << 62)) != 0",
        "odd = (quadrant & (1 << 61)) != 0",
        "float64 half",
    ),
    (
        "the stride of another axis",
        "outer * x_outer + token * x_seq",
        "outer * x_seq + token * x_seq",
        "half",
    ),
    ("x's strides for the result", "token * y_seq", "token * x_seq", "test_out_elsewhere"),
    (
        "an index of 32 bits",
        "(head * x_head)[None",
        "(head * x_head).to(tl.int32)[None",
        "test_rows_beyond_32_bits_of_elements",
    ),
    (
        "an index of tokens of 32 bits",
        "token * y_seq)[:",
        "token * y_seq).to(tl.int32)[:",
        "test_rows_beyond_32_bits_of_elements",
    ),
    ("no unit of strides", "y1_head.to(tl.int64) * UNIT", "y1_head.to(tl.int64)", "half"),
    ("no unit of tables", "token * (first_seq * SOURCE_UNIT)", "token * first_seq", "half, by tables"),
    ("no amplitude", "cos, sin = cos * amplitude, sin * amplitude", "cos = cos * amplitude", "amplitude"),
    (
        "no adjoint",
        "        if TRANSPOSED:\n            sin = -sin\n    _rotate",
        "    _rotate",
        "test_gradients_of_positions",
    ),
    (
        "no adjoint of tables",
        "if TRANSPOSED:\n            sin = -sin\n    else",
        "if False:\n            sin = -sin\n    else",
        "test_gradients_of_tables",
    ),
    (
        "another row of constants",
        "words + 3 * PAIRS + pair",
        "words + 3 * PAIRS + pair * 0",
        "three coordinates, half",
    ),
    (
        "coordinates of one stride",
        "driver[None, :] * coordinate_stride",
        "driver[None, :]",
        "strided coordinates",
    ),
    ("blocks that overlap", "(2 * per_block)", "per_block", "four blocks, half"),
    ("members of pairs swapped", "a, b = tl.split", "b, a = tl.split", "interleaved"),
    ("features not copied", "START + 2 * PAIRS, HEAD_DIM", "START + 2 * PAIRS, HEAD_DIM - 1", "slice"),
    (
        "a stride of features left out",
        "(half + per_block) * x_feature",
        "(half + per_block)",
        "memory in the order (0, 1, 2, 3), features 2 apart, 0 left out",
    ),
    ("heads of the other array", "token, seq, chunk, heads1", "token, seq, chunk, heads0", "more heads in k"),
    ("the first chunk only", "head = chunk * HEADS +", "head =", "many heads"),
    ("the first batch only", "outer = (tile // tiles)", "outer = (tile // tiles * 0)", "half"),
]
_OTHERS = [
    (
        "launches recognised without results in place",
        _launch,
        "return *in_place, *[",
        "return *[",
        "test_a_result_in_place_is_another_launch",
    ),
    (
        "launches recognised without coordinates",
        _launch,
        "of_tensor and (of_tensor, plan.layout, coordinates)",
        "of_tensor and (of_tensor, plan.layout)",
        "test_coordinates_are_another_launch",
    ),
    (
        "memory that is shared not checked",
        _launch,
        "return len({*memories}) == len(memories)",
        "return True",
        "test_a_repeated_call_in_place_is_recognised",
    ),
    (
        "freed memory read",
        _launch,
        "if not address and value.numel()",
        "if False",
        "test_freed_memory_is_declined",
    ),
    (
        "merged axes of x alone",
        _gpu,
        "last.strides == spans",
        "last.strides[0] == spans[0]",
        "test_out_elsewhere",
    ),
    (
        "positions of size 1 not shared",
        _gpu,
        "if a in along else 0",
        "if a in along else 1",
        "half, by tables",
    ),
    ("a wrong remaining axis", _gpu, "n * axis.strides[i]", "axis.strides[i]", "five axes"),
    (
        "units of x alone",
        _launch,
        "(*rows.x, *rows.y, rows.x_offset, rows.y_offset)",
        "rows.x",
        "test_nothing_outside_of_the_result_is_written",
    ),
    (
        "pairings not swapped",
        _launch,
        "layout = layout.transposed(layout.amplitude)",
        "pass",
        "test_gradients_of_positions",
    ),
    (
        "arrays joined whatever their tokens",
        _launch,
        "return [rows.tokens for *_, rows in first] == [rows.tokens for *_, rows in second]",
        "return True",
        "arrays of other ranks",
    ),
    (
        "launches recognised without the layout",
        _launch,
        "of_tensor and (of_tensor, plan.layout, coordinates)",
        "of_tensor and (of_tensor, coordinates)",
        "test_a_repeated_call_is_recognised",
    ),
    (
        "launches recognised without strides",
        _launch,
        "return x.shape, x.stride(), x.dtype",
        "return x.shape, x.dtype",
        "test_another_memory_is_another_launch",
    ),
]
MUTANTS = [Mutant(name, _triton_kernel, *rest) for name, *rest in _KERNEL] + [
    Mutant(*each) for each in _OTHERS
]


@contextlib.contextmanager
def installed(mutant, monkeypatch, folder):
    """Use the sources with a fault."""
    text = inspect.getsource(mutant.module)
    assert text.count(mutant.old) >= 1, f"{mutant.name}: the source no longer has {mutant.old!r}"
    path = folder / "mutant.py"
    path.write_text(text.replace(mutant.old, mutant.new), "utf-8")
    spec = importlib.util.spec_from_file_location(mutant.module.__name__, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with monkeypatch.context() as patch:
        if mutant.module is _launch:
            patch.setattr(_gpu_kernel, "load_gpu_kernel", lambda: module)
        elif mutant.module is _gpu:
            patch.setattr(_launch, "_gpu", module)
        else:
            patch.setattr(_launch, "rotate_rows", module.rotate_rows)
        _launch._launches.clear()
        yield
    _launch._launches.clear()
