"""Mutants of the Triton kernel and of its launches: one fault each, and the test that finds it."""

import contextlib
import importlib.util
import inspect
from typing import NamedTuple

from rope_array._backends import _gpu
from rope_array._backends.torch import _triton_kernel, _triton_launch, triton


class TritonMutant(NamedTuple):
    """A fault: text of a module replaced. A test of test_triton.py or a call of triton_cases.py finds it."""

    module: object
    test: str
    old: str
    new: str

    @property
    def name(self):
        return f"{self.test}: {self.old}"


# By module and test: the texts and what replaces them.
KERNEL = {
    "first features, by tables": [
        ("half_present = present & (pair < PAIRS)[None, None, :]", "half_present = present")
    ],
    "test_nothing_outside_of_the_result_is_written": [
        ("(head < heads)", "(head < heads + 1)"),
        ("present = (token < seq)[:, None, None]", "present = (token < seq + 1)[:, None, None]"),
    ],
    "float64 half": [
        (" + carry.to(tl.int64)", ""),
        ("odd = (quadrant & (1 << 62)) != 0", "odd = (quadrant & (1 << 61)) != 0"),
    ],
    "float64 beyond int32": [(" + (numbers >> 32) * lower", "")],
    "float64 at the ends of int32": [("(numbers & 0xFFFFFFFF) * lower", "numbers * lower")],
    "half": [
        ("((numbers * turns) >> 32)", "((numbers * turns) >> 31)"),
        ("b * cos + a * sin", "b * cos - a * sin"),
        ("cos_sign = (quadrant + (1 << 30))", "cos_sign = (quadrant + (1 << 29))"),
        ("outer * x_outer + token * x_seq", "outer * x_seq + token * x_seq"),
        ("y1_head.to(tl.int64) * UNIT", "y1_head.to(tl.int64)"),
        ("outer = (tile // tiles)", "outer = (tile // tiles * 0)"),
    ],
    "float32 beyond int32": [
        (
            "numbers, words, pair, PAIRS, REAL)\n        if",
            "numbers.to(tl.int32), words, pair, PAIRS, REAL)\n        if",
        )
    ],
    "float32 at float32 positions": [
        ("(x + shift) - shift", "tl.floor(x + 0.5)"),
        ("tl.where(x < 0, -unit, unit)", "unit"),
        ("(quarters << 30)", "(quarters << 31)"),
    ],
    "float32 at float64 positions": [("u = u.to(tl.float64)", "pass")],
    "float64 at float64 positions": [("quarters << 62", "quarters << 61")],
    "strided floats": [("words + 5 * PAIRS + pair", "words + 5 * PAIRS + pair * 0")],
    "test_float_positions_are_read_by_the_kernel": [
        ("tl.where(tl.abs(x) < unit, (x + shift) - shift, x)", "(x + shift) - shift"),
        ("tl.where(tl.abs(nearest) < 2.0**63, nearest, -(2.0**63))", "nearest"),
    ],
    "test_out_elsewhere": [("token * y_seq", "token * x_seq")],
    "test_rows_beyond_32_bits_of_elements": [
        ("(head * x_head)[None", "(head * x_head).to(tl.int32)[None"),
        ("token * y_seq)[:", "token * y_seq).to(tl.int32)[:"),
    ],
    "half, by tables": [("token * (first_seq * SOURCE_UNIT)", "token * first_seq")],
    "amplitude": [("cos, sin = cos * amplitude, sin * amplitude", "cos = cos * amplitude")],
    "test_gradients_of_positions": [
        ("        if TRANSPOSED:\n            sin = -sin\n    _rotate", "    _rotate")
    ],
    "test_gradients_of_tables": [
        ("if TRANSPOSED:\n            sin = -sin\n    else", "if False:\n            sin = -sin\n    else")
    ],
    "three coordinates, half": [("words + 3 * PAIRS + pair", "words + 3 * PAIRS + pair * 0")],
    "strided coordinates": [("driver[None, :] * coordinate_stride", "driver[None, :]")],
    "four blocks, half": [("(2 * per_block)", "per_block")],
    "interleaved": [("a, b = tl.split", "b, a = tl.split")],
    "slice": [("START + 2 * PAIRS, HEAD_DIM", "START + 2 * PAIRS, HEAD_DIM - 1")],
    "memory in the order (0, 1, 2, 3), features 2 apart, 0 left out": [
        ("(half + per_block) * x_feature", "(half + per_block)")
    ],
    "more heads in k": [("token, seq, chunk, heads1", "token, seq, chunk, heads0")],
    "many heads": [("head = chunk * HEADS +", "head =")],
}
LAUNCH = {
    "test_other_calls_are_other_launches": [
        ("return *in_place, *[", "return *["),
        ("tensor_key and (tensor_key, plan.layout, coordinates)", "tensor_key and (tensor_key, plan.layout)"),
        ("return x.shape, x.stride(), x.dtype", "return x.shape, x.dtype"),
    ],
    "test_a_repeated_call_in_place_is_recognised": [
        ("return len({*memories}) == len(memories)", "return True")
    ],
    "test_freed_memory_is_declined": [("if not address and value.numel()", "if False")],
    "test_nothing_outside_of_the_result_is_written": [
        ("(*rows.x, *rows.y, rows.x_offset, rows.y_offset)", "rows.x")
    ],
    "test_gradients_of_positions": [("layout = layout.transposed(layout.amplitude)", "pass")],
    "test_float_positions_are_read_by_the_kernel": [
        ("values.dtype.is_floating_point and not plan.takes_fractions", "False")
    ],
    "arrays of other ranks": [
        ("return [rows.tokens for *_, rows in first] == [rows.tokens for *_, rows in second]", "return True")
    ],
    "test_a_repeated_call_is_recognised": [
        ("tensor_key and (tensor_key, plan.layout, coordinates)", "tensor_key and (tensor_key, coordinates)")
    ],
}
ROWS = {
    "test_out_elsewhere": [("last.strides == spans", "last.strides[0] == spans[0]")],
    "half, by tables": [("if a in along else 0", "if a in along else 1")],
    "five axes": [("n * axis.strides[i]", "axis.strides[i]")],
}
MUTANTS = [
    TritonMutant(module, test, *texts)
    for module, tests in ((_triton_kernel, KERNEL), (_triton_launch, LAUNCH), (_gpu, ROWS))
    for test, rows in tests.items()
    for texts in rows
]


@contextlib.contextmanager
def installed(mutant, monkeypatch, folder):
    """Use the sources with a fault."""
    text = inspect.getsource(mutant.module)
    assert text.count(mutant.old) >= 1, f"the source no longer has {mutant.old!r}"
    path = folder / "mutant.py"
    path.write_text(text.replace(mutant.old, mutant.new), "utf-8")
    spec = importlib.util.spec_from_file_location(mutant.module.__name__, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with monkeypatch.context() as patch:
        if mutant.module is _triton_launch:
            patch.setattr(triton, "load_kernel", lambda: module)
        elif mutant.module is _gpu:
            patch.setattr(_triton_launch, "_gpu", module)
        else:
            patch.setattr(_triton_launch, "rotate_rows", module.rotate_rows)
        _triton_launch._launches.clear()
        yield
    _triton_launch._launches.clear()
