"""Compare the rotations of a running model with its config: `rope_array.hf.examine`."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from rope_array._errors import ConfigError, PatchError
from rope_array._examine import Examination, Finding, findings_of
from rope_array._rope import RoPE
from rope_array.config import read_layers

from . import _rotary
from ._attention import parameters
from ._patch import TOWER, check_module
from ._record import layer_of, observe

_TEXT = {"input_ids", "attention_mask", "position_ids", "use_cache"}
_CROSS = re.compile("cross|encoder_attn", re.IGNORECASE)
_INNER = re.compile("indexer|compressor")  # modules in an attention that rotate other arrays than q and k
_TOKENS, _FARTHEST = 64, 2**20  # float32 angles say little beyond
Arrays = tuple[Any, Any, int]  # before, after, and the axis of the positions


class _Unseen(Exception):
    """A layer that cannot be compared; the message says why."""


def examine(model: Any, inputs: Mapping[str, Any], target: Any) -> Examination:
    """Examine a model; see `rope_array.hf.examine`."""
    check_module(model)
    examiner = _Examiner(model)
    examiner.findings += () if target is None else _draft_findings(model, target)
    examiner.compare(inputs) if inputs else examiner.compare_random_tokens()
    unseen = (item for item in examiner.unseen.items() if item[0] not in examiner.labels)
    return Examination(tuple(examiner.labels.values()), tuple(examiner.findings), tuple(unseen))


def _random_tokens(model: Any) -> Iterator[dict[str, Any]]:
    """Yield the inputs of passes: a text; if the model takes positions, far ones, and a token in each row."""
    config, names = model.config.get_text_config(), parameters(type(model).forward)
    last = min(getattr(config, "max_position_embeddings", None) or _TOKENS, _FARTHEST) - 1
    ids = torch.randint(3, config.vocab_size, (2, _TOKENS), generator=torch.Generator().manual_seed(0))
    ids = ids[:, : last + 1].to(model.device)
    has_decoder = "decoder_input_ids" in names
    yield {"input_ids": ids, **({"decoder_input_ids": ids} if has_decoder else {})}
    if "position_ids" in names and not has_decoder:
        far = sorted({*range(4), last, *(2**n - i for n in range(3, 24) for i in (0, 1) if 2**n <= last)})
        rows = torch.tensor([far[:-1], far[1:]], device=model.device)
        yield {"input_ids": ids[:, : rows.shape[1]], "position_ids": rows}
        yield {"input_ids": ids[:, :1], "position_ids": rows[:, -1:].flip(0)}


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
            remedy = "give the draft's config rope_parameters of the target's"
            yield Finding("draft", layers, "; ".join(nearest), remedy)


class _Examiner:
    """The findings of the passes of a model, in the layers that were compared."""

    def __init__(self, model: Any):
        self.model, self.modules = model, dict(model.named_modules())
        self.findings: list[Finding] = []
        self.labels: dict[str, Any] = {}  # of the modules that were compared
        self.unseen: dict[str, str] = {}
        self.wrong: set[str] = set()  # modules with a finding

    def compare_random_tokens(self) -> None:
        """Compare passes of random tokens."""
        try:
            first, *others = _random_tokens(self.model)
            self.compare(first)
        except Exception as error:
            raise PatchError(
                f"{type(self.model).__name__} raises {error!r} for random tokens; give examine the inputs of "
                "a forward pass, as in examine(model, pixel_values=...)."
            ) from error
        for inputs in others:
            try:
                self.compare(inputs)
            except Exception as error:  # whatever a model raises for positions that it does not take
                text = f"positions up to {int(inputs['position_ids'].max())} raise {error!r}"
                if not isinstance(error, IndexError):
                    self.unseen["far positions"] = text
                    break
                remedy = "make the table as long as max_position_embeddings"
                self.findings.append(Finding("table too short", tuple(self.labels.values()), text, remedy))
                break

    def compare(self, inputs: Mapping[str, Any]) -> None:
        """Run a pass, and add the findings in layers that have none."""
        self.inputs, self.recording = inputs, observe(self.model, inputs)
        names = [name for name in self._names() if name not in self.wrong]
        of_text = [name for name in self._names() if not TOWER.search(name) and not _INNER.search(name)]
        numbers = Counter(map(layer_of, of_text))
        self.known: list[tuple[RoPE, Any, list[Finding]]] = []
        for name in names:
            is_numbered = name in of_text and numbers[layer_of(name)] == 1
            label = layer_of(name) if is_numbered else name
            try:
                findings = self._findings(name, label)
            except _Unseen as reason:
                self.unseen[name] = str(reason)
                continue
            self.labels[name] = label
            self.findings += {finding.kind: finding for finding in findings}.values()
            self.wrong |= {name} if findings else set()

    def _names(self) -> list[str]:
        """Return the names of the modules that rotate, or whose code does though no call was seen."""
        names = [call.name for call in self.recording.calls]
        for name, (query, key) in self.recording.attention.items():
            is_cross = _CROSS.search(name) or query.shape[-2] != key.shape[-2]
            names += [name] if name in self.recording.outputs and not is_cross else []
        return [*dict.fromkeys(names)]

    def _findings(self, name: str, label: Any) -> list[Finding]:
        rope = self._rope(name)
        rotations, findings = self._rotations(name, rope), []
        total = max((x.shape[axis] for x, _, axis in rotations), default=0)
        for before, after, axis in rotations:
            width, length = before.shape[-1], before.shape[axis]
            if width not in (rope.head_dim, rope.rotary_dim or width):
                text = f"{width} features of a head rotate, expected {rope.rotary_dim}"
                findings.append(
                    Finding("rotated part", (label,), text, "give the code partial_rotary_factor")
                )
                continue
            if width != rope.head_dim:  # the rotated part of a head
                rope = replace(rope, head_dim=width, rotary_start=0)
            positions = [*self._positions(name, total, rope, label == name)]
            if length < total:  # queries are the last tokens
                positions = [pos[..., total - length :] for pos in positions]
            findings += self._findings_of((before, after, axis), positions, rope, label)
        return findings

    def _findings_of(self, arrays: Arrays, positions: list[Any], rope: RoPE, label: Any) -> list[Finding]:
        """Return the findings of a rotation: none if it is right by one of the positions."""
        before, after, axis = arrays
        for known_rope, rotate, findings in self.known:
            if known_rope == rope and _rotates(rotate, before, after):
                return [replace(finding, layers=(label,)) for finding in findings]
        if not positions:
            raise _Unseen("its positions are not known")
        every = []
        for pos in positions:
            every.append(findings_of(before.cpu(), after.cpu(), pos.cpu(), rope, layer=label, seq_axis=axis))
            if not every[-1]:
                return []
        same = (call.rotate for call in self.recording.calls if _rotates(call.rotate, before, after))
        self.known += [(rope, rotate, every[0]) for rotate in same][:1]
        return every[0]

    def _rotations(self, name: str, rope: RoPE) -> list[Arrays]:
        """Return the arrays before and after the rotations of a module.

        By its calls; by the features that its attention receives where these are other ones, or where the
        calls have a part of a head.
        """
        calls = _chained(call for call in self.recording.calls if call.name == name)
        received = () if _INNER.search(name) else self.recording.attention.get(name, ())
        is_part = all(x.shape[-1] != rope.head_dim for x, _, _ in calls)
        outputs = self.recording.outputs.get(name, []) if is_part else []
        heads = [(_before(y, outputs), y, -2) for y in received if y.shape[-1] == rope.head_dim]
        heads = [rotation for rotation in heads if rotation[0] is not None]
        if not calls and not heads and rope.rotary_dim:
            raise _Unseen("no call that rotates was seen, nor the features that its attention receives")
        return heads or [*calls, *(rotation for y in received for rotation in _changed_since(y, calls))]

    def _rope(self, name: str) -> RoPE:
        """Return the rope of a module by the config."""
        path = name
        while path and not hasattr(self.modules[path], "config"):
            path = path.rpartition(".")[0]
        module, config = self.modules[path], getattr(self.model, "config", None)
        near = (self.modules[n] for n in _nearest(name, self.modules))
        rotary = next(filter(_rotary.has_frequencies, near), None)
        if rotary is not None and _rotary._learned_parameter(rotary):
            raise _Unseen("its frequencies are learned, and its config has other ones")
        # A config that was replaced after loading is no part of another.
        places = [(config, None)] if type(config) is type(getattr(module, "config", None)) else []
        problem: Any = "the model has no config"
        for place, part in (*places, *_rotary._configs(module, self.model)):
            for layer_type in (layer_of(name), None):
                try:
                    part = "indexer" if "indexer" in name else part
                    return RoPE.from_config(place, part=part, layer_type=layer_type)
                except ConfigError as error:
                    problem = error
        raise _Unseen(str(problem))

    def _positions(self, name: str, length: int, rope: RoPE, is_inner: bool) -> Iterator[Any]:
        """Yield the positions that a layer can mean: counted, or given to its rotary module."""
        count, is_plain = _rotary._count_coordinates(rope), self.inputs.keys() <= _TEXT
        ids = [self.inputs[key].shape[-1] for key in ("input_ids", "decoder_input_ids") if key in self.inputs]
        is_text = length in ids and not TOWER.search(name) and not _INNER.search(name)
        positions = [] if is_text and is_plain else [*self._recorded_positions(name, length, count)]
        if (is_text and (is_plain or count == 1)) or (count == 1 and not positions):
            positions = [*self._counted(length), *positions, *([torch.arange(length)] if is_inner else [])]
        for pos in positions:
            yield pos if count == 1 or pos.shape[-1] == count else pos[..., None].expand(*pos.shape, count)

    def _counted(self, length: int) -> Iterator[Any]:
        """Yield the positions of a text: the given positions, or 0, 1, 2, ..., with or without padding."""
        given, mask = (self.inputs.get(name) for name in ("position_ids", "attention_mask"))
        if given is not None and given.shape[-1] == length:
            yield given.movedim(0, -1) if given.ndim == 3 else given
            return
        yield torch.arange(length)
        if mask is not None and mask.ndim == 2 and mask.shape[-1] == length and not mask.all():
            yield (mask.long().cumsum(-1) - 1).clamp(min=0)

    def _recorded_positions(self, name: str, length: int, count: int) -> Iterator[Any]:
        """Yield the positions that the nearest rotary modules were called with, coordinates last."""
        for other in _nearest(name, self.recording.positions):
            pos = self.recording.positions[other]
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


# ---- arrays ----


def _rotates(rotate: Any, before: Any, after: Any) -> bool:
    """Return whether a function rotates an array to another."""
    try:
        return torch.equal(rotate(before), after)
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


def _changed_since(received: Any, rotations: list[Arrays]) -> Iterator[Arrays]:
    """Yield the arrays of a rotation whose result is not the features that attention received."""
    arrays = [tuple(a if axis == -2 else a.transpose(-2, -3) for a in (x, y)) for x, y, axis in rotations]
    arrays = [(x, y) for x, y in arrays if x.shape[:-1] == received.shape[:-1]]
    if any(_start(received, y) is not None for _, y in arrays):
        return
    for x, _ in arrays:
        width, start = x.shape[-1], _start(received, x)
        if start is not None:
            yield x, received[..., start : start + width], -2
        elif width == received.shape[-1] and _is_close(received.norm(dim=-1), x.norm(dim=-1)):
            yield x, received, -2


def _start(received: Any, x: Any) -> int | None:
    """Return where the first or last features are x, times a factor for each head; None if they are not."""
    width = x.shape[-1]
    for start in (0, received.shape[-1] - width):
        pair = received[..., start : start + width], x
        if _is_close(*(torch.nn.functional.normalize(a.float(), dim=-1) for a in pair)):
            return start
    return None


def _tolerance(*arrays: Any) -> float:
    return max(1e-5, *(4 * torch.finfo(x.dtype).eps for x in arrays))


def _is_close(a: Any, b: Any) -> bool:
    tolerance = _tolerance(a, b)
    return bool(torch.isclose(a.float(), b.float(), rtol=tolerance, atol=tolerance).all())


def _before(received: Any, outputs: list[Any]) -> Any:
    """Return the heads among the outputs of modules that a rotation has made into heads (B, H, S, D).

    A rotation keeps the size of a head, or multiplies all by one factor. None if no or several heads fit.
    """
    batch, _, length, width = received.shape
    sizes = received.float().norm(dim=-1).transpose(1, 2)[..., None]
    before = None
    for output in outputs if batch * length > 8 else []:
        x = output.transpose(1, 2) if output.ndim == 4 and output.shape[1] != length else output
        if x.shape[:2] != (batch, length) or x[0, 0].numel() % width:
            continue
        heads = x.reshape(batch, length, -1, width)
        ratios = sizes / heads.float().norm(dim=-1)[:, :, None]  # (B, S, H, heads of x)
        fits = ratios.amax((0, 1)) < (1 + _tolerance(received)) * ratios.amin((0, 1))
        if not fits.any(-1).all():
            continue
        index = fits.int().argmax(-1)
        same = (heads[:, :, index] * ratios.mean((0, 1)).gather(1, index[:, None])).transpose(1, 2)
        if (fits.sum(-1) > 1).any() or not (before is None or _is_close(before, same)):
            return None
        before = same
    return before
