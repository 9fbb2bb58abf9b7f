"""Faults for the CUDA source: a text to replace, and the case of cuda_cases.py that has to fail."""

from typing import NamedTuple

HEADER, SOURCE = "_native/cos_sin.h", "cupy/rotate.cu"


class Mutant(NamedTuple):
    """A fault: `old`, which the file has once, becomes `new`; compiled for one dtype alone, to save time."""

    old: str
    new: str
    case: str
    dtype: int = 32
    file: str = SOURCE

    def change(self, file, text):
        """Return the text of a file with the fault in it."""
        if file != self.file:
            return text
        assert text.count(self.old) == 1, f"{file} has {self.old!r} {text.count(self.old)} times, not once"
        return text.replace(self.old, self.new)


MUTANTS = {
    mutant.old: mutant
    for mutant in (
        Mutant("token >= call.outer * call.seq", "token > call.outer * call.seq", "many_rows"),
        Mutant("i += blockDim.x)", "i += 1 << 20)", "wide_heads"),
        Mutant("begin > before ? begin - before : 0", "0", "two_arrays"),
        Mutant("end - before < array.heads ? end - before : array.heads", "end - before", "many_rows"),
        Mutant("for (; count > 0; --count)", "for (; count > 1; --count)", "many_rows"),
        Mutant(
            "place.first < call.start ? place.first : place.first + 2 * call.num_pairs",
            "place.first",
            "float32_wide",
        ),
        Mutant("place.seq * array.y_seq", "place.seq * array.x_seq", "strides_of_axes"),
        Mutant("x_feature * array.x_feature)", "x_feature)", "single_elements"),
        Mutant(
            "place.seq * array.x_seq + head",
            "static_cast<int>(place.seq * array.x_seq) + head",
            "indices_beyond_32_bits",
            16,
        ),
        Mutant(
            "head * array.y_head + y_feature",
            "static_cast<int>(head * array.y_head) + y_feature",
            "indices_beyond_32_bits",
            16,
        ),
        Mutant("place.outer * call.pos_outer + ", "", "shapes_of_positions"),
        Mutant("place.seq * call.sin_seq", "place.seq * call.cos_seq", "tables"),
        Mutant(
            "call.start + feature_of<WRITES_HALF>", "call.start + feature_of<READS_HALF>", "float32_specs"
        ),
        Mutant("call.pairs_per_block == call.num_pairs", "true", "float32_coordinates"),
        Mutant("i && call.has_coordinates", "false", "float32_coordinates"),
        Mutant("difference(product(a, cos[k])", "sum(product(a, cos[k])", "float32_specs"),
        Mutant("sin[i] = product(sin[i], amplitude);", "", "float32_specs"),
        Mutant("static_cast<const int*>", "static_cast<const Word32*>", "shapes_of_positions"),
        Mutant("(x + shift) - shift", "(x + UNIT) - UNIT", "float32_float_positions"),
        Mutant("size < UNIT ? (x + shift) - shift : x", "(x + shift) - shift", "float32_float_positions"),
        Mutant("5 * call.num_pairs + pair", "5 * call.num_pairs", "float32_float_positions"),
        Mutant("using Sum = decltype(fraction * u)", "using Sum = double", "float32_float_positions"),
        Mutant("<< (8 * sizeof(Word) - 2)", "<< (8 * sizeof(Word) - 1)", "float64_float_positions", 64),
        Mutant("seq * call.seq_step", "seq * static_cast<Word32>(call.seq_step)", "float32_python_positions"),
        Mutant("(((position & 0xFFFFFFFFu) * turns_q96_low) >> 32)", "0", "float64_specs", 64, HEADER),
        Mutant("static_cast<Int>(position) >> 32", "position >> 32", "float64_specs", 64),
        Mutant("Word{1} << (BITS - 3)", "Word{1} << (BITS - 4)", "float32_specs", 32, HEADER),
        Mutant("0x7FFFu + (b >> 16 & 1u)", "0x8000u", "rounding_to_16_bits", 8),
        Mutant("v != v ? b >> 16 | 0x40u : ", "", "rounding_to_16_bits", 8),
        Mutant(
            "to[2 * i] = Format::widen_low(chunk.word[i]);",
            "to[2 * i] = Format::widen_high(chunk.word[i]);",
            "float16_specs",
            16,
        ),
    )
}
