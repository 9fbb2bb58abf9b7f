"""The demo: rotate a text's queries and keys on every library installed, and compare with the definition."""

import sys

import numpy as np

import rope_array as ra
from rope_array._command._output import hanging, refuse, show
from rope_array._demo._libraries import display_name, installed
from rope_array._demo._measure import STARTS, DtypeCase, Floats, cases, measure
from rope_array._demo._text import HEAD_DIM, HEADS, MOST_TOKENS, TITLE, queries_and_keys, tokens
from rope_array.testing import cos_sin
from rope_array.testing._libraries import ArrayLibrary

SHIFTS = (1_000, 100_000, 1_000_000, 10_000_000)
POSITIONS = (4_096, 131_072, 1_000_000, 10_000_000)
_ROPES = ra.RoPE(HEAD_DIM), ra.RoPE(HEAD_DIM, angles="float32")

_INTRODUCTION = """\
rope_array {version}: rotary position embedding (RoPE) on the libraries installed here

Text:   {title}
Tokens: {start} ...
        {count} words and punctuation marks (at most {most})
Each token has {heads} queries and {heads} keys of {head_dim} numbers. RoPE rotates each pair of these numbers
by an angle that grows with the token's position, fast for some pairs and slowly for others.
"""
_LIBRARIES = """\
1. One call, one result on every library: rope_array.apply((q, k), positions)
   Here the text begins at the positions {starts}, in one batch.
   backend  the code of rope_array in use: array-api works for every library
   error    the largest difference from the exact result, in ulps: 1 ulp is eps x the length of the
            rotated pair (eps: 1.2e-7 in float32, 7.8e-3 in bfloat16, 2.2e-16 in float64)
   allowed  2.5 eps of the arithmetic, float64 or else float32, and half an ulp to round the result
   time     in copies: 8.0 is the time in which this library copies q and k eight times

   library          version       backend    dtype       error  allowed  within   time"""
_DISTANCE = """
2. Scores depend only on the distance between two tokens
   A score is q.k / {root:.0f}, for every query with every key. If the whole text is shifted, no score
   should change. The largest change (NumPy, float32), of scores up to {largest:.1f}:

          shift   exact angles, the default    float32 angles"""
_ANGLES = """
3. The error of float32 angles
   Most model code multiplies position and frequency in float32, which loses digits far into a text.
   The largest error of cos, a number from -1 to 1, among the {num_pairs} frequencies of a head:

       position   exact angles, the default    float32 angles"""


def run(file: str | None) -> int:
    """Print the demo.

    Parameters
    ----------
    file : str or None
        A text in UTF-8; None takes the text shipped with the package.

    Returns
    -------
    int
        Exit status: 0, or 1 if a library misses the contract, or 2 if the file cannot be used.
    """
    try:
        words = tokens(file)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        return refuse("demo", f"cannot use {file!r}: {reason}")
    q, k = queries_and_keys(words)
    _introduce(file, words)
    failed = _show_libraries(q, k)
    _show_distance(q, k)
    _show_angles()
    show(f"\nFAILED: {', '.join(failed)}" if failed else "\nEvery error is within the allowed error.")
    return 1 if failed else 0


def _introduce(file: str | None, words: list[str]) -> None:
    text = {
        "version": ra.__version__,
        "title": TITLE if file is None else _printable(file),
        "start": _printable(" ".join(words)[:80]),
        "count": len(words),
    }
    show(_INTRODUCTION.format(**text, most=MOST_TOKENS, heads=HEADS, head_dim=HEAD_DIM))


def _printable(text: str) -> str:
    """Replace control characters, and characters that the terminal lacks."""
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"  # no stream if standard output is closed
    visible = "".join(c if c.isprintable() else "?" for c in text)
    return visible.encode(encoding, "replace").decode(encoding)


def _show_libraries(q: Floats, k: Floats) -> list[str]:
    """Print the table of libraries; return the libraries that miss the contract."""
    *first, last = (f"{start:,}" for start in STARTS)
    show(_LIBRARIES.format(starts=f"{', '.join(first)} and {last}"))
    libraries, absent, broken = installed()
    every = cases(q, k)
    chosen = [(lib, case) for lib in libraries for case in every if case.dtype in lib.dtypes]
    failed = [f"{display_name(lib)} {case.dtype}" for lib, case in chosen if not _show_row(lib, case)]
    for heading, names in (("Not installed", absent), ("Installed, but not usable here", broken)):
        if names:
            show(f"   {heading}: {', '.join(names)}")
    _show_missing_kernel()
    return failed


def _show_missing_kernel() -> None:
    for reason in {b.description for b in ra.backends() if b.name == "native" and b.usable is False}:
        show("\n".join(hanging("   ", _printable(f"Slower here: {reason}"))))


def _show_row(library: ArrayLibrary, case: DtypeCase) -> bool:
    """Measure a case on a library and print its row; return whether it is within the contract."""
    head = f"   {display_name(library):<17}{library.version[:13]:<14}"
    try:
        row = measure(library, case)
    except Exception as error:  # the row of a library that fails shows the error; the exit status is 1
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        show(f"{head}{'-':<11}{case.dtype:<10}  {_printable(reason)}"[:100])
        return False
    is_within = row.worst <= row.allowed
    errors = f"{row.worst:>7.2f}{row.allowed:>9.2f}  {'yes' if is_within else 'NO':<6}"
    show(f"{head}{row.backend:<11}{case.dtype:<10}{errors}{row.copies:>7.1f}")
    return is_within


def _show_distance(q: Floats, k: Floats) -> None:
    bases = [_scores(rope, q, k, 0) for rope in _ROPES]
    show(_DISTANCE.format(root=HEAD_DIM**0.5, largest=abs(bases[0]).max()))
    for shift in SHIFTS:
        moved = [_scores(rope, q, k, shift) for rope in _ROPES]
        _show_errors(shift, *(abs(m - base).max() for m, base in zip(moved, bases, strict=True)))


def _scores(rope: ra.RoPE, q: Floats, k: Floats, shift: int) -> Floats:
    """Return the scores of all tokens in all heads, summed in float64 to show only the rotation's error."""
    pos = range(shift, shift + q.shape[-2])
    q, k = (y.astype(np.float64) for y in rope.apply((q.astype(np.float32), k.astype(np.float32)), pos))
    return np.asarray(q @ np.swapaxes(k, -1, -2) / HEAD_DIM**0.5)


def _show_angles() -> None:
    show(_ANGLES.format(num_pairs=HEAD_DIM // 2))
    like = np.empty(0, np.float32)
    for position in POSITIONS:
        exact, _ = cos_sin(position, rotary_dim=HEAD_DIM)
        _show_errors(
            position, *(abs(rope.rotation(position, like=like).cos - exact).max() for rope in _ROPES)
        )


def _show_errors(position: int, exact: float, float32: float) -> None:
    show(f"   {position:>12,}{exact:>28.1e}{float32:>18.1e}")
