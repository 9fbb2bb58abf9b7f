"""``python -m rope_array explain``: the rotary embedding of a model, or the backend of a call."""

from typing import Any

from rope_array._command._output import refuse, show
from rope_array._command._rope_options import (
    FIELDS,
    add_array_options,
    add_config_options,
    add_field_options,
    add_length_option,
    at_length,
    check_unused,
    fields_of,
    layer_of,
    zeros,
)

# Options of a call, with their defaults; a config has no use for them.
_CALL = {"library": "numpy", "dtype": "float32", "shape": "1,32,2048,128", "backend": None}


def add_explain(commands: Any) -> None:
    """Add the command to the parser's."""
    parser = commands.add_parser(
        "explain",
        help="describe a model's rotary embedding; or show the backend that a call would use, and why",
        description="With CONFIG: read a Hugging Face config.json, and describe the model's rotary embedding "
        "in words and tables, with the values that are stated, inferred and doubtful. Without: make an array "
        "of zeros, and print rope_array.explain of its rotation by the positions 0, 1, 2 and so on along its "
        "last axis but one.",
        epilog="exit status: 0; 2 if CONFIG cannot be read, there is no such array here, or the call is "
        "refused",
    )
    parser.add_argument(
        "config", metavar="CONFIG", nargs="?", help="a config.json, or the folder that holds it"
    )
    add_config_options(parser)
    group = add_array_options(parser, "call")
    group.add_argument("--shape", metavar="SIZES", help="default: 1,32,2048,128; features last")
    group.add_argument("--backend", metavar="NAME", help="the backend to force, as in rope_array.apply")
    add_field_options(parser)
    add_length_option(parser)
    parser.set_defaults(command=_run_explain)
    _add_config(commands)


def _add_config(commands: Any) -> None:
    """Add `config`, the name under which users look for `explain CONFIG`."""
    parser = commands.add_parser(
        "config",
        help="describe a model's rotary embedding, as `explain CONFIG`",
        description="Read a Hugging Face config.json, and describe the model's rotary embedding in words and "
        "tables, with the values that are stated, inferred and doubtful: the same as `explain CONFIG`.",
        epilog="exit status: 0; 2 if CONFIG cannot be read",
    )
    parser.add_argument("config", metavar="CONFIG", help="a config.json, or the folder that holds it")
    add_config_options(parser)
    add_length_option(parser)
    parser.set_defaults(command=_run_explain, name="config")


def _run_explain(config: str | None, name: str = "explain", **options: Any) -> int:
    import rope_array as ra

    try:
        text = _explain_call(options) if config is None else _explain_config(config, options)
    except (ra.RoPEError, ValueError, ImportError, OSError, RuntimeError, MemoryError) as error:
        return refuse(name, error)
    show(text)
    return 0


def _explain_config(config: str, options: dict[str, Any]) -> str:
    from rope_array._command._config_report import report

    check_unused(options, (*_CALL, *FIELDS), "an explanation of CONFIG does not use")
    return "\n".join(report(config, options["part"], layer_of(options["layer_type"]), options["length"]))


def _explain_call(options: dict[str, Any]) -> str:
    import rope_array as ra

    check_unused(options, ("part", "layer_type"), "without CONFIG, there is no use for")
    fields = fields_of(options)
    call: dict[str, Any] = _CALL | {name: options[name] for name in _CALL if options[name] is not None}
    with zeros(call["library"], call["dtype"], _sizes(call["shape"])) as x:
        pos = range(x.shape[-2]) if len(x.shape) > 1 else 0
        rope = at_length(ra.RoPE(x.shape[-1], **fields), options["length"])
        return str(ra.explain(x, pos, rope, backend=call["backend"]))


def _sizes(text: str) -> tuple[int, ...]:
    try:
        sizes = tuple(map(int, text.split(",")))
    except ValueError:
        sizes = ()
    if not sizes or min(sizes) < 0:
        raise ValueError(f"the shape is {text!r}; give the size of each axis, such as 1,32,2048,128")
    return sizes
