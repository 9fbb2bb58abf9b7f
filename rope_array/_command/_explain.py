"""``python -m rope_array explain``: the backend of a call."""

from typing import Any

from rope_array._command._output import refuse, show


def add_explain(commands: Any) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser(
        "explain",
        help="show the backend that a call would use, and why",
        description="Make an array of zeros, and print rope_array.explain of its rotation by the positions "
        "0, 1, 2, ... along its last axis but one.",
        epilog="exit status: 0; 2 if there is no such array here, or the call is refused",
    )
    parser.add_argument(
        "--library", metavar="NAME", default="numpy", help="a name of `check --list`, such as torch:cuda"
    )
    parser.add_argument("--dtype", metavar="NAME", default="float32", help="default: float32")
    parser.add_argument(
        "--shape", metavar="SIZES", default="1,32,2048,128", help="default: 1,32,2048,128; features last"
    )
    parser.add_argument(
        "--pairing", metavar="NAME", default="interleaved", help="interleaved (default) or half"
    )
    parser.add_argument("--backend", metavar="NAME", help="the backend to force, as in rope_array.apply")
    parser.set_defaults(command=_run)


def _run(library: str, dtype: str, shape: str, pairing: str, backend: str | None) -> int:
    import rope_array as ra
    from rope_array.testing._libraries import LIBRARIES

    try:
        if library not in LIBRARIES:
            raise ValueError(f"unknown library {library!r}; give one of {', '.join(LIBRARIES)}")
        lib = LIBRARIES[library]
        lib.check_present()
        with lib.running():
            x = _zeros(lib, dtype, _sizes(shape))
            pos = range(x.shape[-2]) if len(x.shape) > 1 else 0
            explanation = ra.explain(x, pos, pairing=pairing, backend=backend)
    except (ra.RoPEError, ValueError, ImportError, OSError, RuntimeError, MemoryError) as error:
        return refuse("explain", error)
    show(str(explanation))
    return 0


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(map(int, text.split(",")))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 0:
        raise ValueError(f"the shape is {text!r}; give the size of each axis, such as 1,32,2048,128")
    return sizes


def _zeros(lib: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    """Return zeros, broadcast from one number if the library can: no backend's choice depends on strides."""
    floats = lib.dtypes
    if dtype not in floats:
        reason = f" ({lib.gaps[dtype]})" if dtype in lib.gaps else ""
        raise ValueError(f"the dtype is {dtype!r}; {lib.name} has {', '.join(floats)} here{reason}")
    import numpy as np  # unused by other commands

    return lib.expanded(lib.asarray(np.zeros((1,) * len(shape), np.float32), dtype), shape)
