"""Ropes from options of the command line: the fields of a rope, or the config of a model."""

import ast
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import rope_array as ra
from rope_array._spec import scaling

_EXAMPLE = "YaRN(factor=4.0, original_max_position_embeddings=32768)"
_LONGEST = 10_000  # characters; LongRoPE's two lists have a few thousand
FIELDS = ("base", "rotary_dim", "pairing", "scaling")


def add_field_options(parser: ArgumentParser) -> None:
    """Add the options for the fields of a rope, but for head_dim."""
    group = parser.add_argument_group("fields of the rope")
    group.add_argument("--base", type=float, metavar="NUMBER", help="default: 10000")
    group.add_argument("--rotary-dim", type=int, metavar="N", help="rotated features (default: all)")
    group.add_argument("--pairing", metavar="NAME", help="interleaved (default) or half")
    group.add_argument("--scaling", metavar="RULE", help=f"a rule, such as '{_EXAMPLE}'")


def add_config_options(parser: ArgumentParser) -> None:
    """Add the options that choose a rope of a config."""
    group = parser.add_argument_group("choices within a config")
    group.add_argument("--part", metavar="NAME", help="part of a model, such as text or vision")
    group.add_argument("--layer-type", metavar="NAME", help="a type of layer, or the index of a layer")


def add_length_option(parser: ArgumentParser) -> None:
    """Add the option for rules that depend on the length."""
    parser.add_argument(
        "--length", type=int, metavar="N", help="positions in the sequence, for a rule that depends on them"
    )


def add_array_options(parser: ArgumentParser, title: str) -> Any:
    """Add the options for the library and the dtype of an array; return their group."""
    group = parser.add_argument_group(title)
    group.add_argument("--library", metavar="NAME", help="a name of `check --list`, such as torch:cuda")
    group.add_argument("--dtype", metavar="NAME", help="default: float32")
    return group


@contextmanager
def zeros(library: str | None, dtype: str | None, shape: tuple[int, ...]) -> Iterator[Any]:
    """Make zeros, and run its library as the suite does.

    They are broadcast from one number if the library can: no backend's choice depends on strides.

    Raises
    ------
    ValueError
        There is no such library, or it has no such dtype here.
    """
    import numpy as np  # unused by other commands

    from rope_array.testing._libraries import LIBRARIES

    library, dtype = library or "numpy", dtype or "float32"
    if library not in LIBRARIES:
        raise ValueError(f"unknown library {library!r}; give one of {', '.join(LIBRARIES)}")
    lib = LIBRARIES[library]
    lib.check_present()
    with lib.running():
        if dtype not in lib.dtypes:
            reason = f" ({lib.lacks[dtype]})" if dtype in lib.lacks else ""
            raise ValueError(f"the dtype is {dtype!r}; {lib.name} has {', '.join(lib.dtypes)} here{reason}")
        yield lib.expanded(lib.asarray(np.zeros((1,) * len(shape), np.float32), dtype), shape)


def fields_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that options give.

    Raises
    ------
    SpecError
        The rule cannot be parsed, or has a value that names no rule.
    """
    fields = {name: options[name] for name in FIELDS if options[name] is not None}
    if "scaling" in fields:
        fields["scaling"] = parse_rule(fields["scaling"])
    return fields


def check_unused(options: Mapping[str, Any], names: tuple[str, ...], reason: str) -> None:
    """Refuse options that have no effect.

    Raises
    ------
    ValueError
        An option of these names is given.
    """
    unused = [f"--{name.replace('_', '-')}" for name in names if options.get(name) is not None]
    if unused:
        raise ValueError(f"{reason} {', '.join(unused)}; leave it out")


def layer_of(text: str | None) -> str | int | None:
    """Return the name of a type of layer, or the index of a layer."""
    return int(text) if text is not None and text.isdecimal() else text


def at_length(rope: ra.RoPE, length: int | None) -> ra.RoPE:
    """Return the rope for a length.

    Raises
    ------
    SpecError
        The length is missing and the rule depends on it, or it is no length.
    """
    if length is not None:
        return rope.at_length(length)
    if rope.scaling is not None and not rope.scaling.resolved:
        raise ra.SpecError(
            f"{type(rope.scaling).__name__} depends on the length of the sequence; give --length"
        )
    return rope


def name_of(config: str) -> str:
    """Return the name of a config for a label: the folder's, for a config.json in a folder."""
    path = Path(config)
    if path.name == "config.json":
        path = path.parent
    return path.resolve().name.removesuffix(".json") or config


def parse_rule(text: str) -> Any:
    """Return the rule that a text writes as a call with plain values; nothing is executed.

    Raises
    ------
    SpecError
        The text is no such call, or a value names no rule.
    """
    try:
        if len(text) > _LONGEST:
            raise ValueError
        return _rule(ast.parse(text.strip(), mode="eval").body)
    except ra.SpecError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        short = text if len(text) <= 80 else f"{text[:77]}..."
        raise ra.SpecError(
            f"--scaling is {short!r}; give the call of a rule with plain values, such as {_EXAMPLE}. The "
            f"rules are {', '.join(scaling.__all__)}."
        ) from None


def _rule(node: ast.expr) -> Any:
    """Build a rule from the syntax tree of a call; without parentheses it has no arguments."""
    name = _rule_name(node)
    args, keywords = (node.args, node.keywords) if isinstance(node, ast.Call) else ([], [])
    if name is None or any(keyword.arg is None for keyword in keywords):
        raise ValueError
    fields = {str(keyword.arg): _value(keyword.value) for keyword in keywords}
    try:
        return getattr(ra, name)(*map(_value, args), **fields)
    except TypeError as error:  # a field is missing or unknown
        reason = str(error).partition("__init__() ")[2] or str(error)
        raise ra.SpecError(f"--scaling: {name} {reason}; see help(rope_array.{name}).") from None


def _rule_name(node: ast.expr) -> str | None:
    """Return the name of the rule that an expression names or calls, such as YaRN(4.0) or ra.YaRN(4.0)."""
    called = node.func if isinstance(node, ast.Call) else node
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", None)
    return name if name in scaling.__all__ else None


def _value(node: ast.expr) -> Any:
    return ast.literal_eval(node) if _rule_name(node) is None else _rule(node)
