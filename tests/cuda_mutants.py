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
    # masks and loops
    "one token too many": Mutant(
        "token >= call.outer * call.seq", "token > call.outer * call.seq", "many_rows"
    ),
    "first pairs of a wide head alone": Mutant("i += blockDim.x)", "i += 1 << 20)", "wide_heads"),
    "heads of q again with k": Mutant("begin > before ? begin - before : 0", "0", "two_arrays"),
    "one head too many": Mutant(
        "end - before < array.heads ? end - before : array.heads", "end - before", "many_rows"
    ),
    "the rest of the heads left out": Mutant(
        "for (; count > 0; --count)", "for (; count > 1; --count)", "many_rows"
    ),
    "features after the slice not copied": Mutant(
        "place.first < call.start ? place.first : place.first + 2 * call.num_pairs",
        "place.first",
        "float32_wide",
    ),
    # strides and indices
    "x's stride for y": Mutant("place.seq * array.y_seq", "place.seq * array.x_seq", "strides_of_axes"),
    "features at distance 1": Mutant("x_feature * array.x_feature)", "x_feature)", "single_elements"),
    "32 bits for rows": Mutant(
        "place.seq * array.x_seq + head",
        "static_cast<int>(place.seq * array.x_seq) + head",
        "indices_beyond_32_bits",
        16,
    ),
    "32 bits for heads": Mutant(
        "head * array.y_head + y_feature",
        "static_cast<int>(head * array.y_head) + y_feature",
        "indices_beyond_32_bits",
        16,
    ),
    "one row of positions": Mutant("place.outer * call.pos_outer + ", "", "shapes_of_positions"),
    "cos's stride for sin": Mutant("place.seq * call.sin_seq", "place.seq * call.cos_seq", "tables"),
    # pairs
    "pairs written as they are read": Mutant(
        "call.start + feature_of<WRITES_HALF>", "call.start + feature_of<READS_HALF>", "float32_specs"
    ),
    "blocks taken as one": Mutant("call.pairs_per_block == call.num_pairs", "true", "float32_coordinates"),
    "one coordinate for all pairs of a thread": Mutant("i && call.several", "false", "float32_coordinates"),
    # arithmetic
    "rotated backwards": Mutant("difference(product(a, cos[k])", "sum(product(a, cos[k])", "float32_specs"),
    "amplitude of cos alone": Mutant("sin[i] = product(sin[i], amplitude);", "", "float32_specs"),
    "the transposed flag ignored": Mutant("if (call.transposed)", "if (false)", "transposed"),
    "int32 without sign": Mutant(
        "static_cast<const int*>", "static_cast<const Word32*>", "shapes_of_positions"
    ),
    "steps of 32 bits": Mutant(
        "seq * call.seq_step", "seq * static_cast<Word32>(call.seq_step)", "float32_python_positions"
    ),
    "a lost carry": Mutant(
        "(((position & 0xFFFFFFFFu) * turns_q96_low) >> 32)", "0", "float64_specs", 64, HEADER
    ),
    "the upper position without sign": Mutant(
        "static_cast<Int>(position) >> 32", "position >> 32", "float64_specs", 64
    ),
    "quadrants from the wrong bit": Mutant(
        "Word{1} << (BITS - 3)", "Word{1} << (BITS - 4)", "float32_specs", 32, HEADER
    ),
    # 16 bits
    "ties away from even": Mutant("0x7FFFu + (b >> 16 & 1u)", "0x8000u", "rounding_to_16_bits", 8),
    "NaN rounded as a number": Mutant("v != v ? b >> 16 | 0x40u : ", "", "rounding_to_16_bits", 8),
    "halves of a word exchanged": Mutant(
        "to[2 * i] = Format::widen_low(chunk.word[i]);",
        "to[2 * i] = Format::widen_high(chunk.word[i]);",
        "float16_specs",
        16,
    ),
}
