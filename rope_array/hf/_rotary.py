"""The rotary modules of a model: their ropes, found by their config and checked by their tables."""

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from rope_array._errors import ConfigError, PatchError
from rope_array._rope import RoPE
from rope_array._spec.scaling import LongRoPE
from rope_array.torch._learned import scaled_rotation

from . import _operators
from ._attention import ARRANGED, NARROW, dtype_name, is_recorded, parameters
from ._layer_tables import LayerTables

NAMES = re.compile("Rotary|RoPE|Rope|Rotat")
TableFunction = Callable[[Any, Any, Any], Any]
EPS = 2.0**-24  # half a unit in the last place of float32, relative
# Positions for the check: near ones, and one of the order of a usual length.
PROBE_POSITIONS = (0, 1, 2, 5, 17, 130, 1000)


class UnsupportedModule(Exception):
    """A rotary module that `patch` does not support; the message says why."""


class ConfigMismatch(Exception):
    """A rotary module whose frequencies or tables differ from its config's; the message says how."""


@dataclass(frozen=True)
class TableFormat:
    """How a rotary module returns the tables of one rope.

    Attributes
    ----------
    rope
        The rope, angles exact.
    arrangement
        As in `RotaryFunction`, "blocks" for `Rotation.full_width` of several blocks, or "complex".
    sign
        -1 if the module returns the sine of the positive angle for a negative frequency.
    coordinates
        "plain", "first", "last" or "last batched": the axis of the positions that has the coordinates. "each"
        is the first axis if the tables have it too: the model's function chooses each pair's coordinate.
    has_batch_axis
        Whether the module adds a first axis of size 1.
    stored_as
        The name of the 16-bit dtype to which the frequencies are rounded, by the checkpoint or by a cast and
        its reverse; None if they are not.
    log_scale
        The name of the parameter whose exponential multiplies the frequencies of the rope; None if there is
        none.
    """

    rope: RoPE
    arrangement: str
    sign: int
    coordinates: str
    has_batch_axis: bool
    stored_as: str | None = None
    log_scale: str | None = None

    @property
    def of_tables(self) -> RoPE:
        """The rope of the tables: of one coordinate, if each has tables."""
        return replace(self.rope, axes=None) if self.coordinates == "each" else self.rope


@dataclass(frozen=True)
class RotaryPlan:
    """A rotary module, and the format of its tables by layer type; None is the key if it has one rope."""

    name: str
    module: Any
    formats: dict[str | None, TableFormat]
    keeps_dtype: bool  # whether its tables have x's dtype

    @property
    def stored_as(self) -> str | None:
        """As in the formats, if one of them has it."""
        names = (table_format.stored_as for table_format in self.formats.values())
        return next(filter(None, names), None)

    @property
    def log_scale(self) -> str | None:
        """As in the formats."""
        return next(iter(self.formats.values())).log_scale

    @property
    def ropes(self) -> Any:
        """The rope, or the ropes by layer type."""
        return self._by_layer_type(lambda rope: rope)

    @property
    def ropes_in_float32(self) -> Any:
        """The same with `angles="float32"`."""
        return self._by_layer_type(lambda rope: replace(rope, angles="float32"))

    def _by_layer_type(self, change: Callable[[RoPE], RoPE]) -> Any:
        ropes = {name: change(table_format.rope) for name, table_format in self.formats.items()}
        return ropes[None] if set(ropes) == {None} else ropes


# ---- reading ----


def plan_rotary(name: str, module: Any, model: Any, exact: bool) -> RotaryPlan:
    """Return the plan of a rotary module, or raise UnsupportedModule or ConfigMismatch.

    `exact`: whether the angles will be exact. If not, the module keeps its tables, in a cast model too.
    """
    tensors = (*module._buffers.values(), *module._parameters.values())
    if any(tensor is not None and tensor.is_meta for tensor in tensors):
        raise UnsupportedModule("its buffers or parameters are on the device meta: load the weights first")
    if not has_frequencies(module):
        raise UnsupportedModule("it keeps no inverse frequencies")
    for buffer in _stored_frequencies(module).values():
        if exact and buffer.dtype in NARROW:
            raise UnsupportedModule(
                f"its frequencies are part of the checkpoint, and a cast to {dtype_name(buffer.dtype)} has "
                "rounded them; load the model again, patch it, then cast it, or keep the tables of the cast "
                "model: patch with angles='float32'"
            )
    log_scale = learned_parameter(module)
    if exact and log_scale and (reason := _why_rounded(log_scale, getattr(module, log_scale))):
        raise UnsupportedModule(reason)
    names = parameters(type(module).forward)
    if names[1:3] != ("x", "position_ids") or names[3:] not in ((), ("layer_type",), ("seq_len",)):
        raise UnsupportedModule(f"its forward takes ({', '.join(names[1:])}), not (x, position_ids)")
    layer_types = _buffered_layer_types(module) if "layer_type" in names else (None,)
    try:
        formats = {layer_type: _find_format(module, model, layer_type) for layer_type in layer_types}
    except ConfigMismatch as difference:
        if log_scale is None:
            raise
        raise UnsupportedModule(
            f"its frequencies are learned, and are not the frequencies of its config times exp({log_scale}): "
            f"{difference}"
        ) from None
    layer_type, table_format = next(iter(formats.items()))
    cos, *_ = _call(probe_of(module), torch.zeros(1, 1, dtype=torch.bfloat16), table_format, layer_type)
    return RotaryPlan(name, module, formats, cos.dtype is torch.bfloat16)


def has_frequencies(module: Any) -> bool:
    """Return whether a module keeps inverse frequencies, as rotary modules do."""
    return any(name.endswith("inv_freq") for name in module._buffers)


def _stored_frequencies(module: Any) -> dict[str, Any]:
    """Return the frequencies that are part of a module's checkpoints, by name."""
    left_out = module._non_persistent_buffers_set
    buffers = module._buffers.items()
    return {n: b for n, b in buffers if n.endswith("inv_freq") and n not in left_out and b is not None}


def learned_parameter(module: Any) -> str | None:
    """Return the name of a module's parameter, or None; raise UnsupportedModule if it has several."""
    names = [name for name, parameter in module._parameters.items() if parameter is not None]
    if len(names) > 1:
        raise UnsupportedModule(
            f"its frequencies are learned, by the parameters {', '.join(names)}; patch supports one "
            "parameter s, with frequencies times exp(s)"
        )
    return names[0] if names else None


def _why_rounded(name: str, log_scale: Any) -> str | None:
    """Return why a learned parameter cannot give exact angles; None if it has 32 bits or more."""
    if log_scale.dtype.itemsize >= 4:
        return None
    return (
        f"a cast to {dtype_name(log_scale.dtype)} has rounded its parameter {name}, and each position "
        f"multiplies the error; load the model again by from_pretrained(..., dtype=...), which leaves {name} "
        "in float32, and use it without a cast; with fully_shard, shard this module first, on its own and "
        "without param_dtype; or keep the model's own numbers: patch with angles='float32'"
    )


def _buffered_layer_types(module: Any) -> tuple[str | None, ...]:
    """Return the layer types that a module has buffers for; (None,) if it has one set of frequencies."""
    end = "_inv_freq"
    names = [name[: -len(end)] for name in module._buffers if name.endswith(end)]
    layer_types = tuple(name for name in names if name != "original" and not name.endswith("_original"))
    return layer_types or (None,)


def _find_format(module: Any, model: Any, layer_type: str | None) -> TableFormat:
    """Find the rope of a module: of the ropes that the config can mean, the rope with the module's tables."""
    differences: list[str] = []
    problems: list[str] = []
    for rope in _rope_candidates(module, model, layer_type, problems):
        try:
            return _match(module, rope, layer_type)
        except ConfigMismatch as difference:
            differences.append(str(difference))
    if differences:
        raise ConfigMismatch(differences[0])
    raise UnsupportedModule(problems[0] if problems else "it has no config")


def _rope_candidates(module: Any, model: Any, layer_type: str | None, problems: list[str]) -> Iterator[RoPE]:
    ropes = set()
    for config, part_name in configs_around(module, model):
        for name in (layer_type,) if layer_type is not None else (None, *_layer_types(config)):
            try:
                rope = RoPE.from_config(config, part=part_name, layer_type=name)
            except ConfigError as problem:
                problems.append(str(problem))
                continue
            if rope.rotary_dim and rope not in ropes:
                ropes.add(rope)
                yield rope


def configs_around(module: Any, model: Any) -> Iterator[tuple[Any, str | None]]:
    """Yield the config of a module in its place in the model's, then by itself."""
    module_config, model_config = getattr(module, "config", None), getattr(model, "config", None)
    if model_config is not None and module_config is not None:
        for path in _paths(model_config, module_config):
            yield model_config, path or None
    if module_config is not None:
        yield module_config, None
    elif model_config is not None:
        yield from ((model_config, part_name) for part_name in (None, "text", "vision", "audio"))


def _paths(config: Any, wanted: Any, depth: int = 3) -> Iterator[str]:
    """Yield the path of each place of a config inside another, with dots."""
    if config is wanted:
        yield ""
    for name, value in vars(config).items() if depth else ():
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            for path in _paths(value, wanted, depth - 1):
                yield f"{name}.{path}" if path else name


def _layer_types(config: Any) -> tuple[Any, ...]:
    """Return a config's layer types, then usual ones: models of transformers 4 have modules of both."""
    layer_types = getattr(config, "layer_types", None)
    configured = layer_types if isinstance(layer_types, list | tuple) else ()
    return tuple(dict.fromkeys((*configured, "full_attention", "sliding_attention")))


# ---- checking ----


def probe_of(module: Any) -> Any:
    """Return a copy of a module on the CPU: a call may change its buffers."""
    probe = copy.copy(module)
    probe.__dict__ = dict(vars(module))
    for group in ("_buffers", "_parameters"):
        probe.__dict__[group] = {
            name: value if value is None else value.detach().to("cpu", copy=True)
            for name, value in vars(module)[group].items()
        }
    return probe


def _match(module: Any, rope: RoPE, layer_type: str | None) -> TableFormat:
    """Return how a module arranges the tables of a rope; raise ConfigMismatch if it has other numbers."""
    probe = probe_of(module)
    rope, stored_as = _as_stored(probe, rope)
    _check_frequencies(probe, rope, layer_type)
    log_scale = learned_parameter(probe)
    if log_scale is not None:
        _set_to_zero(probe, log_scale, rope)
    difference = None
    for coordinates, has_batch_axis in _forms(count_coordinates(rope)):
        table_format = TableFormat(rope, "", 1, coordinates, has_batch_axis, stored_as, log_scale)
        try:
            theirs = _call(probe, torch.zeros(1, 1, dtype=torch.float32), table_format, layer_type)
        except Exception:  # whatever a module raises for positions of another shape
            continue
        arrangement, mismatch = _arrangement(theirs, table_format)
        if arrangement is not None:
            table_format = replace(table_format, arrangement=arrangement[0], sign=arrangement[1])
            if log_scale is not None:
                _check_factors(probe, table_format, layer_type)
            return table_format
        difference = mismatch or difference
    raise ConfigMismatch(difference or "its tables have another shape than the rope of its config")


def _set_to_zero(probe: Any, name: str, rope: RoPE) -> None:
    """Set a learned parameter to 0; raise ConfigMismatch if it has other numbers than one for each pair."""
    shape, pairs = tuple(probe._parameters[name].shape), rope.rotary_dim // 2
    if shape != (pairs,):
        raise ConfigMismatch(f"{name} has the shape {shape}, and the rope of its config {pairs} pairs")
    probe._parameters[name] = torch.zeros(shape, dtype=torch.float32)


def _check_factors(probe: Any, table_format: TableFormat, layer_type: str | None) -> None:
    """Raise ConfigMismatch if the exponential of a learned parameter does not multiply the frequencies."""
    log_scale = torch.linspace(-0.5, 0.75, table_format.rope.rotary_dim // 2, dtype=torch.float32)
    probe._parameters[table_format.log_scale] = log_scale
    theirs = _call(probe, torch.zeros(1, 1, dtype=torch.float32), table_format, layer_type)
    arrangement, mismatch = _arrangement(theirs, table_format, log_scale)
    if arrangement != (table_format.arrangement, table_format.sign):
        raise ConfigMismatch(mismatch or "its tables have another arrangement")


def count_coordinates(rope: RoPE) -> int:
    """Return how many numbers a position has."""
    return 1 if rope.axes is None else int(rope.axes.count or 1)


def _forms(count: int) -> tuple[tuple[str, bool], ...]:
    if count == 1:
        return (("plain", False),)
    return (("first", False), ("last", False), ("last", True), ("last batched", False), ("each", False))


def _probe_positions(count: int, coordinates: str) -> Any:
    line = torch.tensor(PROBE_POSITIONS)
    if count == 1:
        return line[None]
    every = torch.stack([line.roll(a) for a in range(count)])  # unequal coordinates
    if coordinates in ("first", "each"):
        return every[:, None]
    return every.T[None] if coordinates == "last batched" else every.T


def _call(probe: Any, x: Any, table_format: TableFormat, layer_type: str | None) -> tuple[Any, ...]:
    positions = _probe_positions(count_coordinates(table_format.rope), table_format.coordinates)
    with torch.no_grad():
        options = {} if layer_type is None else {"layer_type": layer_type}
        out = type(probe).forward(probe, x, positions, **options)
    return out if isinstance(out, tuple) else (out,)


def _check_frequencies(probe: Any, rope: RoPE, layer_type: str | None) -> None:
    """Raise ConfigMismatch if the module's frequencies are not the rope's, rounded to their dtype.

    Then put the rope's float32 frequencies in their place: a model cast to bfloat16 has rounded buffers.
    """
    prefix = "" if layer_type is None else f"{layer_type}_"
    # Of rules by length, which change inv_freq. It is a buffer, or in transformers 4 an attribute.
    original = getattr(probe, f"{prefix}original_inv_freq", None) if by_length(rope) else None
    if original is None or original.is_meta:
        name = f"{prefix}inv_freq"
        buffer = probe._buffers.get(name)
    else:
        name, buffer = f"{prefix}original_inv_freq", original.cpu()
    if buffer is None:
        return
    frequencies = torch.tensor(rope.at_length(1).frequencies, dtype=torch.float64).abs()
    if buffer.numel() > len(frequencies):  # Pixtral in transformers 4
        raise UnsupportedModule(f"its buffer {name} is a table of angles, not of frequencies")
    magnitudes = buffer.double().abs()
    index = (magnitudes.flatten()[:, None] - frequencies).abs().argmin(-1)
    nearest = frequencies[index].reshape(buffer.shape)
    small = buffer.dtype in NARROW
    dtype = torch.finfo(buffer.dtype)
    eps = 4 * dtype.eps if small else 40 * EPS
    smallest = dtype.eps * dtype.tiny  # subnormal numbers of float16 are multiples of it
    wrong = (magnitudes - nearest).abs() > eps * nearest + 1e-9 * frequencies.max() + smallest
    if wrong.any():
        raise ConfigMismatch(
            f"its buffer {name} has the frequency {float(buffer[wrong][0]):.7g}, and the rope of its config "
            f"{float(nearest[wrong][0]):.7g}"
        )
    if small:
        for buffer_name in (name, name.replace("original_", "")):
            probe._buffers[buffer_name] = nearest.float()


def _as_stored(probe: Any, rope: RoPE) -> tuple[RoPE, str | None]:
    """Return a rope with the frequencies of the module if they are the rope's, rounded to 16 bits.

    The second result is the name of the 16-bit dtype, or None. Published files of ESM-2 hold 16-bit
    frequencies: the model was trained with them. A cast of the model and its reverse leave the same numbers.
    """
    buffer = _stored_frequencies(probe).get("inv_freq")
    if buffer is None or rope.scaling is not None or buffer.shape != (rope.rotary_dim // 2,):
        return rope, None
    stored, exact = buffer.double(), torch.tensor(rope.frequencies, dtype=torch.float64)
    off = (stored - exact).abs()
    if (off <= 40 * EPS * exact).all():
        return rope, None
    for dtype in NARROW:
        limits = torch.finfo(dtype)
        near = off <= limits.eps * (exact + limits.tiny)
        if torch.equal(stored, stored.to(dtype).double()) and near.all():
            return replace(rope, base=RoPE.base, inv_freq=tuple(stored.tolist())), dtype_name(dtype)
    return rope, None


def _arrangement(
    theirs: tuple[Any, ...], table_format: TableFormat, log_scale: Any = None
) -> tuple[tuple[str, int] | None, str | None]:
    """Return (arrangement, sign) of tables, or None and the difference."""
    rope, count = table_format.of_tables, count_coordinates(table_format.rope)
    positions = _probe_positions(count, table_format.coordinates)
    if table_format.coordinates == "first":
        positions = _coordinates_last(positions, count)
    at_length = rope.at_length(int(positions.max()) + 1)
    ours = _rotation(at_length, torch.zeros(1, dtype=torch.float32), positions, log_scale)
    far = positions.abs().max()
    per_pair = at_length.amplitude * (torch.tensor(at_length.frequencies).abs() * far * 60 * EPS + 8 * EPS)
    if len(theirs) == 1 and theirs[0].is_complex():
        if theirs[0].shape != ours.cos.shape:
            return None, None
        good = _close(theirs[0].real, ours.cos, per_pair) and _close(theirs[0].imag, ours.sin, per_pair)
        return (("complex", 1), None) if good else (None, _describe_difference(theirs[0].real, ours.cos))
    if len(theirs) != 2:
        return None, "it does not return cos and sin"
    wrong = None
    for name, arrange in arrangements(rope).items():
        cos, sin, error = arrange(ours.cos), arrange(ours.sin), arrange(per_pair[None])[0]
        if table_format.has_batch_axis:
            cos, sin = cos[None], sin[None]
        if theirs[0].shape != cos.shape:
            continue
        for sign in (1, -1):
            if _close(theirs[0], cos, error) and _close(theirs[1], sign * sin, error):
                return (name, sign), None
        wrong = wrong or _describe_difference(theirs[0], cos)
    return None, wrong


def arrangements(rope: RoPE) -> dict[str, Callable[[Any], Any]]:
    """Return the arrangements of tables by name, "blocks" only if the rope has several blocks."""
    blocks = 1 if rope.axes is None else rope.axes.blocks
    if blocks == 1:
        return ARRANGED
    return {"blocks": lambda table: _repeat_in_blocks(table, blocks), **ARRANGED}


def _repeat_in_blocks(table: Any, blocks: int) -> Any:
    return ARRANGED["cat"](table.unflatten(-1, (blocks, -1))).flatten(-2)


def _close(theirs: Any, ours: Any, error: Any) -> bool:
    return bool(((theirs - ours).abs() <= error).all())


def _describe_difference(theirs: Any, ours: Any) -> str:
    index = int((theirs - ours).abs().argmax())
    theirs, ours = float(theirs.flatten()[index]), float(ours.flatten()[index])
    return f"its cos is {theirs:.7g} where the rope of its config has {ours:.7g}"


def by_length(rope: RoPE) -> bool:
    """Return whether a rope's frequencies or amplitude depend on the length of the sequence."""
    return rope.at_length(1) != rope.at_length(2**30)


# ---- replacement ----


def make_forward(plan: RotaryPlan, in_float32: bool) -> Callable[..., Any]:
    """Return the function that replaces the module's forward.

    `in_float32`: keep the tables float32 in half precision.
    """
    makers = {name: make_table_function(table_format) for name, table_format in plan.formats.items()}
    log_scale_of = _parameter_reader(plan.log_scale)
    pass_on = _round_to_input if plan.keeps_dtype and not in_float32 else _keep_precision
    make = next(iter(makers.values()))

    # Some classes of transformers 4, such as DBRX and RecurrentGemma, take seq_len, and ignore it.
    def forward(self: Any, x: Any, position_ids: Any, seq_len: Any = None) -> Any:
        return pass_on(make(x, position_ids, log_scale_of(self, x)), x)

    def forward_by_type(self: Any, x: Any, position_ids: Any, layer_type: Any = None) -> Any:
        return pass_on(makers[layer_type](x, position_ids, log_scale_of(self, x)), x)

    return forward_by_type if "layer_type" in parameters(type(plan.module).forward) else forward


def _parameter_reader(name: str | None) -> Callable[[Any, Any], Any]:
    """Return a function of (module, x) that returns the parameter of this name; None without a name."""

    def read(module: Any, x: Any) -> Any:
        if name is None:
            return None
        log_scale = getattr(module, name)
        if reason := _why_rounded(name, log_scale):
            raise PatchError(f"{type(module).__name__}: {reason}.")
        return log_scale.to(x.device)

    return read


def _round_to_input(tables: Any, x: Any) -> Any:
    return tuple(table.to(x.dtype) for table in tables)


def _keep_precision(tables: Any, x: Any) -> Any:
    return tables if isinstance(tables, torch.Tensor) else LayerTables(*tables)


def make_table_function(table_format: TableFormat) -> TableFunction:
    """Return a function that returns tables as the module does, with exact angles.

    It takes (x, position_ids, log_scale): the learned parameter of the module, or None.
    """
    rope, sign, has_batch_axis = table_format.of_tables, table_format.sign, table_format.has_batch_axis
    count = count_coordinates(rope)
    is_first = table_format.coordinates == "first"
    cos_sin = _cos_sin_by_length(rope) if by_length(rope) else _cos_sin(rope)
    arrangement = table_format.arrangement
    arrange = None if arrangement == "pairs" else arrangements(rope).get(arrangement)
    is_complex = arrangement == "complex"

    def make(x: Any, position_ids: Any, log_scale: Any) -> Any:
        pos = _coordinates_last(position_ids, count) if is_first else position_ids
        cos, sin = cos_sin(x, pos, log_scale)
        sin = sin if sign == 1 else -sin
        if is_complex:
            return torch.complex(cos, sin)
        if arrange is not None:
            cos, sin = arrange(cos), arrange(sin)
        return (cos[None], sin[None]) if has_batch_axis else (cos, sin)

    return make


def _coordinates_last(pos: Any, count: int) -> Any:
    """Return positions (coordinates, B, S), or (B, S) for equal coordinates as in text, as (B, S, count)."""
    pos = pos if pos.ndim == 3 else pos[None]
    return pos.expand(count, -1, -1).movedim(0, -1)


def _cos_sin(rope: RoPE) -> TableFunction:
    """Return a function of (x, positions, log_scale) that returns cos and sin of each pair."""
    text = _operators.text_of(rope)

    def cos_sin(x: Any, pos: Any, log_scale: Any) -> Any:
        if log_scale is None and torch.compiler.is_compiling() and _operators.serves(x, pos):
            return _operators.make_tables_by_operator(x, readable_positions(pos), text)
        return _rotation(rope, x, pos, log_scale)

    return cos_sin


def _rotation(rope: RoPE, x: Any, pos: Any, log_scale: Any) -> Any:
    """Make the rotation by a rope, its frequencies times exp(log_scale) unless that is None."""
    pos = readable_positions(pos)
    return rope.rotation(pos, like=x) if log_scale is None else scaled_rotation(rope, pos, log_scale, x)


def readable_positions(pos: Any) -> Any:
    """Return positions of a dtype that `RoPE.rotation` takes."""
    return pos.float() if pos.dtype in (*NARROW, torch.bool) else pos


def _cos_sin_by_length(rope: RoPE) -> TableFunction:
    """Return `_cos_sin` for a rule that depends on the length: the largest position of the call, plus 1."""
    if isinstance(rope.scaling, LongRoPE):
        return _cos_sin_long(rope)

    def cos_sin(x: Any, pos: Any, log_scale: Any) -> Any:
        if is_recorded():
            raise _traced_length(rope)
        return _rotation(rope.at_length(int(pos.max()) + 1), x, pos, log_scale)

    # Outside of compiled code, as the value of a position decides.
    uncompiled: TableFunction = torch.compiler.disable(cos_sin)
    return uncompiled


def _traced_length(rope: RoPE) -> PatchError:
    """Return the error for a traced call whose frequencies depend on values of positions."""
    return PatchError(
        f"the frequencies of {type(rope.scaling).__name__} depend on the largest position of a call, and "
        "torch.jit.trace and torch.export record the frequencies of one call. Make the model with a rule of "
        "fixed frequencies in its config, such as 'yarn'. Or call rope_array.hf.unpatch(model) and use "
        "torch.jit.trace with an example of the longest sequence: the model's code keeps its frequencies."
    )


def _cos_sin_long(rope: RoPE) -> TableFunction:
    """Return the tables of the short or of the long frequencies.

    Off the CPU, without copying a value from the device to the host.
    """
    scaling: Any = rope.scaling
    last = scaling.original_max_position_embeddings
    short, long = (_cos_sin(rope.at_length(length)) for length in (last, last + 1))

    def cos_sin(*call: Any) -> Any:
        pos = call[1]
        if pos.is_cpu and not is_recorded():
            return (long if int(pos.max()) >= last else short)(*call)
        is_long = pos.max() >= last
        return tuple(torch.where(is_long, a, b) for a, b in zip(long(*call), short(*call), strict=True))

    return cos_sin
