"""``python -m rope_array plot``: draw a plot of rope_array.plots into a file."""

from argparse import RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

from rope_array._command._output import refuse, show
from rope_array._command._rope_options import (
    FIELDS,
    add_config_options,
    add_field_options,
    add_length_option,
    at_length,
    check_unused,
    fields_of,
    layer_of,
    name_of,
)

# The plots by name, with their help and the options of the function that each takes.
_PLOTS = {
    "angle-error": ("error of exact, float32 and bfloat16 angles by position", ("furthest",)),
    "wavelengths": ("wavelength of each pair, and the context", ("context",)),
    "scaling": ("effect of scaling rules on the frequencies", ("context",)),
    "decay": ("long-term decay of scores with the distance", ("furthest",)),
    "rotation": ("rotation of one pair, in its plane", ("pair",)),
    "scores": ("map of the scores of queries and keys by position", ("positions",)),
    "axes": ("coordinate and frequency of each pair, for a CONFIG of images or video", ()),
}
_NUMBERS = {
    "furthest": "last position or distance",
    "context": "context in positions (default: the config's)",
    "pair": "number of the pair (default: 0)",
    "positions": "number of positions (default: 64)",
}


def add_plot(commands: Any) -> None:
    """Add the command to the parser's."""
    list_of_plots = "\n".join(f"  {name:<13}{text}" for name, (text, _) in _PLOTS.items())
    parser = commands.add_parser(
        "plot",
        help="draw a plot of a rotary embedding into a file",
        formatter_class=RawDescriptionHelpFormatter,
        description="Draw a plot of rope_array.plots into a file, of the ropes of configs or of a rope with\n"
        "the fields given. It needs matplotlib: python -m pip install matplotlib.\n\n"
        f"KIND is one of\n{list_of_plots}",
        epilog="exit status: 0; 2 if the rope is refused, matplotlib is missing, or FILE cannot be written",
    )
    parser.add_argument("plot", metavar="KIND", choices=_PLOTS, help="the plot to draw, see above")
    parser.add_argument(
        "configs",
        metavar="CONFIG",
        nargs="*",
        default=[],  # else argparse says that it is required
        help="a config.json, or the folder that holds it; several are drawn together",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="default: KIND.svg; or .png, .pdf")
    add_config_options(parser)
    parser.add_argument("--head-dim", type=int, metavar="N", help="features of a head (default: 128)")
    add_field_options(parser)
    add_length_option(parser)
    group = parser.add_argument_group("range of the plot")
    for name, text in _NUMBERS.items():
        group.add_argument(f"--{name}", type=int, metavar="N", help=text)
    parser.set_defaults(command=_run_plot)


def _run_plot(plot: str, output: str | None, **options: Any) -> int:
    import rope_array as ra

    path = f"{plot}.svg" if output is None else output
    try:
        _draw(plot, path, options)
    except (ra.RoPEError, ValueError, ImportError, OSError) as error:
        return refuse("plot", error)
    show(f"wrote {path}")
    return 0


def _draw(plot: str, path: str, options: dict[str, Any]) -> None:
    from rope_array import plots

    used = _PLOTS[plot][1]
    check_unused(
        options, tuple(name for name in _NUMBERS if name not in used), f"the plot {plot} has no use for"
    )
    if not Path(path).suffix:
        raise ValueError(f"the file {path!r} has no suffix, which names the format; give {path}.svg")
    ropes, context = _ropes(options) if options["configs"] else _rope_of_fields(plot, options)
    settings = {name: options[name] for name in used if options[name] is not None}
    if "context" in used and context is not None:
        settings.setdefault("context", context)
    plots.save(getattr(plots, plot.replace("-", "_"))(ropes, **settings), path)


def _ropes(options: dict[str, Any]) -> tuple[Any, int | None]:
    """Return the ropes of configs by name, of several types of layer too, and the first known context."""
    check_unused(options, ("head_dim", *FIELDS), "a plot of a CONFIG does not use")
    from rope_array.config import Reading

    ropes: dict[str, Any] = {}
    readings: list[Reading] = []
    for config in options["configs"]:
        for label, reading in _readings(config, options):
            ropes[label] = at_length(reading.rope, options["length"])
            readings.append(reading)
    if not ropes:
        raise ValueError("no layer of the model rotates")
    return ropes, next((reading.context for reading in readings if reading.context), None)


def _readings(config: str, options: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the readings of a config's layers that rotate, by label."""
    from rope_array.config import read, read_layers

    name, layer = name_of(config), layer_of(options["layer_type"])
    if layer is not None:
        return [(f"{name}, {layer}", read(config, part=options["part"], layer_type=layer))]
    layers = read_layers(config, part=options["part"])
    groups = [(indices, reading) for indices, reading in layers if reading.rope.rotary_dim]
    if len(groups) == 1:
        return [(name, groups[0][1])]
    return [(f"{name}, layer {indices[0]}", reading) for indices, reading in groups]


def _rope_of_fields(plot: str, options: dict[str, Any]) -> tuple[Any, int | None]:
    """Return the rope of the fields, and the trained context of its rule; without fields, an example."""
    import rope_array as ra

    check_unused(options, ("part", "layer_type"), "without a CONFIG, there is no use for")
    fields, head_dim = fields_of(options), options["head_dim"]
    if plot == "axes":
        raise ValueError("a plot of axes needs a CONFIG of a model whose positions have coordinates")
    if plot == "scaling" and "scaling" not in fields:
        raise ValueError(
            "a plot of scaling needs a rule; give a CONFIG, or --scaling, such as --scaling "
            "'Llama3(factor=8.0)'"
        )
    rope = at_length(ra.RoPE(128 if head_dim is None else head_dim, **fields), options["length"])
    trained = getattr(rope.scaling, "original_max_position_embeddings", None)
    return rope, None if trained is None else int(trained)
