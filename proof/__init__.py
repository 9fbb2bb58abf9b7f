"""Proofs of the numerical contract, by Sollya and Gappa.

`python -m proof` proves every bound and prints a table; docs/numerics.md states the theorems. The order of
operations is recorded from the library's own functions, and read from the kernel's source, on each run.

* `expressions`: floating-point expressions, recorded by running a function on symbols.
* `recorded`: the expressions of rope_array/_array_api/angles.py and pairs.py.
* `kernel`: the expressions of backends/_native: cos_sin.h, loops/angles.hpp and loops/rotate.hpp.
* `approximation`: Sollya's fits, and its certified bounds of the approximation errors.
* `rounding`: Gappa scripts of an expression, and their results.
* `theorems`: the bounds of the contract, composed of these.
"""
