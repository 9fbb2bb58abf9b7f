"""``python -m rope_array fingerprint``: the fingerprint of a rope or a config, or the difference of two."""

from pathlib import Path
from typing import Any

from rope_array._command._output import refuse, show
from rope_array._command._rope_options import (
    FIELDS,
    add_array_options,
    add_config_options,
    add_field_options,
    at_length,
    check_unused,
    fields_of,
    layer_of,
    zeros,
)


def add_fingerprint(commands: Any) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser(
        "fingerprint",
        help="print the fingerprint of a rotation, or compare two",
        description="Print rope_array.fingerprint of the layers of CONFIG, or of a rope with the fields "
        "given, as this process rotates. With --compare: read two printed fingerprints, and print the first "
        "thing that differs.",
        epilog="exit status: 0; 1 if the two of --compare differ; 2 if the rope is refused, or a file cannot "
        "be read or holds no fingerprint",
    )
    parser.add_argument("config", metavar="CONFIG", nargs="?", help="a config.json, or its folder")
    parser.add_argument("--compare", metavar="FILE", nargs=2, help="logs, each with a printed fingerprint")
    add_config_options(parser)
    add_array_options(parser, "arrays")
    parser.add_argument("--head-dim", type=int, metavar="N", help="features of a head (default: 128)")
    add_field_options(parser)
    parser.add_argument(
        "--length", type=int, metavar="N", help="positions to measure (default: CONFIG's context, or 2**31)"
    )
    parser.set_defaults(command=_run_fingerprint)


def _run_fingerprint(config: str | None, compare: list[str] | None, **options: Any) -> int:
    import rope_array as ra

    try:
        if compare:
            if config:
                raise ValueError(f"--compare has no use for the CONFIG {config}; give two files alone")
            check_unused(options, tuple(options), "--compare has no use for")
            ours, others = map(_read, compare)
            difference = ours.difference(others)
            show(difference or "equal")
            return 1 if difference else 0
        with zeros(options["library"], options["dtype"], (1,)) as like:
            show(str(_of_config(config, like, options) if config else _of_fields(like, options)))
    except (ra.RoPEError, ValueError, ImportError, OSError, RuntimeError, MemoryError) as error:
        return refuse("fingerprint", error)
    return 0


def _read(path: str) -> Any:
    import rope_array as ra

    try:
        return ra.Fingerprint.parse(Path(path).read_text("utf-8", "replace"))
    except ra.FingerprintError as error:
        raise ValueError(f"{path}: {error}") from None


def _of_fields(like: Any, options: dict[str, Any]) -> Any:
    import rope_array as ra

    check_unused(options, ("part", "layer_type"), "without CONFIG, there is no use for")
    head_dim, length = options["head_dim"], options["length"]
    rope = ra.RoPE(128 if head_dim is None else head_dim, **fields_of(options))
    return ra.fingerprint(at_length(rope, length), length=length, like=like)


def _of_config(config: str, like: Any, options: dict[str, Any]) -> Any:
    """Return the fingerprint of the layers of a config, or of one type, by default at its context."""
    from rope_array._fingerprint import fingerprint_of_ropes
    from rope_array.config import read, read_layers

    check_unused(options, ("head_dim", *FIELDS), "a fingerprint of CONFIG does not use")
    part, layer, length = options["part"], layer_of(options["layer_type"]), options["length"]
    if layer is None:
        groups = read_layers(config, part=part)
    else:
        groups = (((), read(config, part=part, layer_type=layer)),)
    length = groups[0][1].context if length is None else length
    ropes = [(layers, at_length(reading.rope, length)) for layers, reading in groups]
    return fingerprint_of_ropes(ropes, like, length)
