"""Compare the rotations of a running model with its config: `rope_array.hf.examine`."""

import re
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from rope_array._errors import ConfigError, PatchError, RoPEError
from rope_array._examine import Examination, Finding, finding_of, findings_of
from rope_array._rope import RoPE
from rope_array.config import read_layers

from . import _rotary
from ._attention import parameters
from ._fingerprint import text_config_of
from ._patch import TOWER, check_module
from ._record import Recording, RotationCall, layer_of, observe
from ._report import pattern_of

_TEXT = {"input_ids", "attention_mask", "position_ids", "use_cache", "cache", "past_key_values"}
_CROSS = re.compile("cross|encoder_attn", re.IGNORECASE)
_NOT_TEXT = re.compile(f"{TOWER.pattern}|indexer|compressor", re.IGNORECASE)
_TOKENS, _FARTHEST = 64, 2**20  # float32 angles say little beyond
Arrays = tuple[Any, Any, int]  # before, after, and the axis of the positions


class _Unseen(Exception):
    """A layer that cannot be compared; the message says why."""


def examine(model: Any, inputs: Mapping[str, Any], target: Any) -> Examination:
    """Examine a model; see `rope_array.hf.examine`."""
    for of_config in (model,) if target is None else (model, target):
        check_module(of_config)
        if not hasattr(getattr(of_config, "config", None), "to_dict"):
            raise PatchError(
                f"{type(of_config).__name__} has no config to compare with; give the whole model: of a "
                "wrapper its module, such as model.module."
            )
    examiner, problem = _Examiner(model), None
    examiner.findings += () if target is None else _draft_findings(model, target)
    if inputs:
        examiner.compare(inputs, observe(model, inputs))
    else:
        passes, problem = _passes_of_random_tokens(model)
        for of_pass in passes:
            examiner.compare(*of_pass)
    layers, unseen = tuple(examiner.labels.values()), [*examiner.unseen.items()]
    if isinstance(problem, IndexError) and _is_of_rotary(problem):
        text = f"positions up to max_position_embeddings raise {problem!r}"
        examiner.findings.append(finding_of("table too short", layers, text))
    elif problem is not None:  # whatever a model raises for positions that it does not take
        unseen.append(("positions up to max_position_embeddings", f"they raise {problem!r}"))
    unseen = [(name, reason) for name, reason in unseen if name not in examiner.labels]
    if not layers and not unseen:
        unseen = [(type(model).__name__, "no call that rotates was seen")]
    return Examination(layers, tuple(examiner.findings), tuple(unseen))


def _passes_of_random_tokens(
    model: Any,
) -> tuple[list[tuple[Mapping[str, Any], Recording]], Exception | None]:
    """Run passes of random tokens, and return them with the exception that ended them, if there was one."""
    passes: list[tuple[Mapping[str, Any], Recording]] = []
    try:
        for inputs in _random_tokens(model):
            passes.append((inputs, observe(model, inputs)))
    except Exception as error:
        if passes:
            return passes, error
        raise PatchError(
            f"{type(model).__name__} raises {error!r} for random tokens; give examine the inputs of a pass, "
            "as in examine(model, pixel_values=...)."
        ) from error
    return passes, None


def _random_tokens(model: Any) -> Iterator[dict[str, Any]]:
    """Yield the inputs of passes: a text; if the model takes positions, far ones, and a token in each row."""
    config = text_config_of(model)
    # A wrapper, such as PEFT's, may hand on whatever it gets.
    takers = (parameters(type(module).forward) for module in model.modules())
    names = next((names for names in takers if "input_ids" in names), ())
    last = min(getattr(config, "max_position_embeddings", None) or _TOKENS, _FARTHEST) - 1
    ids = torch.randint(3, config.vocab_size, (2, _TOKENS), generator=torch.Generator().manual_seed(0))
    ids = ids[:, : last + 1].to(model.device)
    has_decoder = "decoder_input_ids" in names
    yield {"input_ids": ids, **({"decoder_input_ids": ids} if has_decoder else {})}
    if "position_ids" in names and not has_decoder:
        far = sorted(
            {*range(min(4, last)), last, *(2**n - i for n in range(3, 24) for i in (0, 1) if 2**n <= last)}
        )
        rows = torch.tensor([far[:-1], far[1:]], device=model.device)
        yield {"input_ids": ids[:, : rows.shape[1]], "position_ids": rows}
        yield {"input_ids": ids[:, :1], "position_ids": rows[:, -1:].flip(0)}


def _is_of_rotary(error: Exception) -> bool:
    """Return whether a rotary module has raised an error."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(_rotary.NAMES.search(type(frame.f_locals.get("self")).__name__) for frame in frames)


def _draft_findings(model: Any, target: Any) -> Iterator[Finding]:
    """Yield the differences of a draft's ropes, by its config, from the nearest rope of its target."""

    def differences(rope: RoPE, other: RoPE) -> list[str]:
        names = ("base", "scaling", "pairing", "out_pairing")
        pairs = ((name, getattr(rope, name), getattr(other, name)) for name in names)
        return [f"{name} {a!r}, the target has {b!r}" for name, a, b in pairs if a != b]

    ropes = [reading.rope for _, reading in read_layers(target.config)]
    for layers, reading in read_layers(model.config):
        nearest = min((differences(reading.rope, rope) for rope in ropes), key=lambda texts: len(texts))
        if nearest:
            yield finding_of("draft", layers, "; ".join(nearest))


class _Examiner:
    """The findings of the passes of a model, in the layers that were compared."""

    def __init__(self, model: Any):
        self.model, self.modules = model, dict(model.named_modules())
        self.findings: list[Finding] = []
        self.labels: dict[str, Any] = {}  # of the modules that were compared
        self.unseen: dict[str, str] = {}
        self.wrong: set[str] = set()  # modules with a finding

    def compare(self, inputs: Mapping[str, Any], recording: Recording) -> None:
        """Add the findings of a pass in layers that have none."""
        self.inputs, self.recording = inputs, recording
        cache: Any = inputs.get("cache", inputs.get("past_key_values"))  # by the version
        self.cached = cache.get_seq_length() if hasattr(cache, "get_seq_length") else 0  # with this pass
        self.known: list[tuple[RoPE, RotationCall, list[Finding]]] = []  # calls with findings
        names = [call.name for call in recording.calls]
        for name, (query, key) in recording.attention.items():  # also of code without a call
            is_cross = _CROSS.search(name) or query.shape[-2] != key.shape[-2]
            names += [name] if name in recording.outputs and (self.cached or not is_cross) else []
        patterns = {pattern_of(name) for name in names}
        names += [name for name in recording.users if pattern_of(name) in patterns]
        numbers = Counter(layer_of(name) for name in {*names} if not _NOT_TEXT.search(name))
        for name in dict.fromkeys(names):
            number = None if _NOT_TEXT.search(name) else layer_of(name)
            label = number if numbers[number] == 1 and number is not None else name
            try:
                findings = [] if name in self.wrong else self._findings(name, label)
            except _Unseen as reason:
                self.unseen[name] = str(reason)
                continue
            self.labels[name] = label
            self.findings += {finding.kind: finding for finding in findings}.values()
            self.wrong |= {name} if findings else set()

    def _findings(self, name: str, label: Any) -> list[Finding]:
        """Compare the calls of a module that rotate, and the features that its attention receives.

        The latter show a rotation that is repeated or lost after a call, or a part of a head that is another
        one; and they are all that there is where no call was seen.
        """
        rope, recording = self._rope(name), self.recording
        calls = _chained(call for call in recording.calls if call.name == name)
        outputs, amplitude = recording.outputs.get(name, []), rope.at_length(1).amplitude
        lengths = {x.shape[axis] for x, _, axis in calls}  # NeuCodec's positions are along the heads
        query, key = recording.attention.get(name, (None, None))
        if query is not None and key.shape[-2] == self.cached:  # keys of earlier passes come first
            key = key[..., -query.shape[-2] :, :]
        received = (y for y in (query, key) if y is not None and y.shape[-1] == rope.head_dim)
        received = (y for y in received if not calls or y.shape[-2] in lengths)
        heads = [(x, y, -2) for y in received if (x := _before(y, outputs, amplitude)) is not None]
        if not calls and not heads and rope.rotary_dim:
            raise _Unseen("no call that rotates was seen, nor the features that its attention receives")
        total = max((self.cached, *(x.shape[axis] for x, _, axis in (*calls, *heads))))
        is_whole = any(x.shape[-1] == rope.head_dim for x, _, _ in calls)
        for rotations in (calls, heads) if is_whole else (heads, calls):
            findings = (self._findings_of(arrays, rope, name, label, total) for arrays in rotations)
            if every := [finding for some in findings for finding in some]:
                return every
        return []

    def _findings_of(self, arrays: Arrays, rope: RoPE, name: str, label: Any, total: int) -> list[Finding]:
        """Return the findings of a rotation: none if it is right by one of the positions."""
        before, after, axis = arrays
        width, length = before.shape[-1], before.shape[axis]
        if width not in (rope.head_dim, rope.rotary_dim or width):
            text = f"{width} features of a head rotate, expected {rope.rotary_dim}"
            return [finding_of("rotated part", (label,), text)]
        if width != rope.head_dim:
            rope = replace(rope, head_dim=width, rotary_start=0)
        for known_rope, call, findings in self.known:
            if known_rope == rope and _rotates(call, before, after):
                return [replace(finding, layers=(label,)) for finding in findings]
        first: list[Finding] | None = None
        for pos in self._positions(name, total, rope, label == name):
            tokens = -1 if _rotary.count_coordinates(rope) == 1 else -2
            if length < pos.shape[tokens] == total:  # queries are the last
                pos = pos.narrow(tokens, total - length, length)
            pos = pos.cpu()
            try:
                findings = findings_of(before.cpu(), after.cpu(), pos, rope, layer=label, seq_axis=axis)
            except RoPEError as problem:
                raise _Unseen(str(problem)) from problem
            if not findings:
                return []
            first = first or findings
        if first is None:
            raise _Unseen("its positions are not known")
        same = (call for call in self.recording.calls if call.name == name and _rotates(call, before, after))
        self.known += [(rope, call, first) for call in same]
        return first

    def _rope(self, name: str) -> RoPE:
        """Return the rope of a module by the config."""
        path = name
        while path and not hasattr(self.modules[path], "config"):
            path = path.rpartition(".")[0]
        module, config = self.modules[path], getattr(self.model, "config", None)
        near = (self.modules[other] for other in _nearest(name, self.modules))
        rotary = next(filter(_rotary.has_frequencies, near), None)
        if rotary is not None and _rotary.learned_parameter(rotary):
            raise _Unseen("its frequencies are learned, and its config has other ones")
        # A config that was replaced after loading is no part of another.
        places = [(config, None)] if type(config) is type(getattr(module, "config", None)) else []
        problem: Any = "the model has no config"
        for place, part in (*places, *_rotary.configs_around(module, self.model)):
            for layer_type in (layer_of(name), None):
                try:
                    part = "indexer" if "indexer" in name else part
                    return RoPE.from_config(place, part=part, layer_type=layer_type)
                except ConfigError as error:
                    problem = error
        raise _Unseen(str(problem))

    def _positions(self, name: str, length: int, rope: RoPE, is_inner: bool) -> Iterator[Any]:
        """Yield the positions that a layer can mean: counted, or given to its rotary module."""
        count, is_plain = _rotary.count_coordinates(rope), self.inputs.keys() <= _TEXT
        ids = [self.inputs[key].shape[-1] for key in ("input_ids", "decoder_input_ids") if key in self.inputs]
        is_text = length in (*ids, self.cached) and not _NOT_TEXT.search(name)
        positions = [] if is_text and is_plain else [*self._recorded_positions(name, length, count)]
        if (is_text and (is_plain or count == 1)) or (count == 1 and not positions):
            positions = [*self._counted(length), *positions, *([torch.arange(length)] if is_inner else [])]
        for pos in positions:
            yield pos if count == 1 or pos.shape[-1] == count else pos[..., None].expand(*pos.shape, count)

    def _counted(self, length: int) -> Iterator[Any]:
        """Yield the positions of a text: the given positions, or 0, 1, 2, ..., with or without padding."""
        given, mask = (self.inputs.get(name) for name in ("position_ids", "attention_mask"))
        if given is not None and (self.cached or given.shape[-1] == length):
            yield given.movedim(0, -1) if given.ndim == 3 else given
            return
        yield torch.arange(length)
        if mask is not None and mask.ndim == 2 and mask.shape[-1] == length and not mask.all():
            yield (mask.long().cumsum(-1) - 1).clamp(min=0)

    def _recorded_positions(self, name: str, length: int, count: int) -> Iterator[Any]:
        """Yield the positions that the nearest rotary modules were called with, coordinates last."""
        for other in _nearest(name, self.recording.positions):
            pos = _rotary.readable_positions(self.recording.positions[other])
            if count > 1 and pos.ndim == 3 and pos.shape[-1] != count:
                pos = pos.movedim(0, -1)
            if pos.shape[-1] == length or (count > 1 and pos.shape[-2:] == (length, count)):
                yield pos


def _nearest(name: str, others: Any) -> list[str]:
    """Return names of modules in the order of the length of the path that they share with a module."""

    def shared(other: str) -> int:
        pairs = enumerate(zip(name.split("."), other.split("."), strict=False))
        return next((i for i, (a, b) in pairs if a != b), other.count(".") + 1)

    return sorted(others, key=shared, reverse=True)


def _rotates(call: RotationCall, before: Any, after: Any) -> bool:
    """Return whether the function and the tables of a call rotate an array to another."""
    try:
        return bool(torch.equal(call.rotate(before), after))
    except Exception:  # whatever a function raises for arrays of another shape
        return False


def _chained(calls: Any) -> list[Arrays]:
    """Return the arrays of calls; one rotation for calls of which each gets the result of another."""
    rotations: list[Arrays] = []
    for call in calls:
        for before, after in zip(call.before, call.after, strict=True):
            same = (i for i, (_, y, _) in enumerate(rotations) if torch.equal(y, before))
            index = next(same, None)
            first = before if index is None else rotations.pop(index)[0]
            rotations.append((first, after, call.seq_axis))
    return rotations


def _before(received: Any, outputs: list[Any], amplitude: float) -> Any:
    """Return the heads among the outputs of modules that a rotation has made into heads (B, H, S, D).

    A rotation keeps the size of a head; code may multiply all heads by one factor. None if no or several fit.
    """
    batch, _, length, width = received.shape
    sizes = received.float().norm(dim=-1).transpose(1, 2)[..., None] / amplitude
    tolerance = max(1e-5, 4 * torch.finfo(received.dtype).eps)
    before = None
    for output in outputs if batch * length > 8 else ():  # few sizes can be equal by chance
        x = output.transpose(1, 2) if output.ndim == 4 and output.shape[1] != length else output
        if x.shape[:2] != (batch, length) or x[0, 0].numel() % width:
            continue
        heads = x.reshape(batch, length, -1, width).float()
        ratios = sizes / heads.norm(dim=-1)[:, :, None]  # (B, S, H, heads of x)
        fits = ratios.amax((0, 1)) < (1 + tolerance) * ratios.amin((0, 1))
        if not fits.any(-1).all():
            continue
        index = fits.int().argmax(-1)
        factors = ratios.mean((0, 1)).gather(1, index[:, None])
        if amplitude != 1:  # a factor of the rule that is missing, or is applied twice
            for lost in (amplitude, 1 / amplitude):
                factors[(factors / lost - 1).abs() < tolerance] = 1
        same = (heads[:, :, index] * factors).transpose(1, 2)
        if (fits.sum(-1) > 1).any() or not (before is None or torch.allclose(before, same, rtol=tolerance)):
            return None
        before = same
    return before
