"""Record the rotations of one forward pass of a model.

For the pass, a recorder replaces each function that takes cos and sin in the globals of the model's code. It
knows the module by the frames of its callers. So it sees the model's own functions, functions that a user has
put in their place, and the functions of `patch`. The model's queries and keys are recorded again where
attention receives them: a rotation that is repeated, undone or lost shows there.
"""

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch

from ._attention import _seq_axis, parameters, rotates
from ._attributes import NamedModule
from ._norm import HeadNorm
from ._rebind import undecorated, used_names
from ._rotary import NAMES

Function = Callable[..., Any]
# Functions with other parameters than cos and sin, such as freqs_cis.
_ROTARY_NAME = re.compile("apply_.*(rot|rope)|rotary_emb|rotate_queries")
_ATTENTION = "ALL_ATTENTION_FUNCTIONS"


@dataclass(frozen=True)
class RotationCall:
    """A call that rotates arrays of a layer.

    Attributes
    ----------
    name
        The name of the module in the model that called the function.
    layer
        The index of its layer; None if its name has no number.
    before, after
        The arrays before and after the call, such as q and k.
    seq_axis
        Their axis of the positions.
    rotate
        A function that rotates another array by the same function and the same tables. The array has the
        shape of `before[0]`, but any number of heads.
    """

    name: str
    layer: int | None
    before: tuple[Any, ...]
    after: tuple[Any, ...]
    seq_axis: int
    rotate: Function


@dataclass
class Recording:
    """Everything that a pass has shown.

    Attributes
    ----------
    calls
        The calls that rotate, in their order.
    attention
        For each module the query and the key that its attention function received.
    projections
        For each module that rotates the outputs of its children, such as q_proj, by name.
    positions
        For each rotary module the positions that it was called with.
    """

    calls: list[RotationCall] = field(default_factory=list)
    attention: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    projections: dict[str, dict[str, Any]] = field(default_factory=dict)
    positions: dict[str, Any] = field(default_factory=dict)


def record(model: Any, inputs: Mapping[str, Any]) -> list[RotationCall]:
    """Return the calls that rotate in one forward pass of a model, which stays as it is."""
    return observe(model, inputs).calls


def observe(model: Any, inputs: Mapping[str, Any]) -> Recording:
    """Run one forward pass of a model in its own dtype, without gradients, and return what it has shown."""
    recorder = _Recorder(model)
    with ExitStack() as stack:
        for change in (torch.no_grad(), _unchanged(model), recorder.replacements(), recorder.hooks()):
            stack.enter_context(change)
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        model.eval()
        takes_cache = "use_cache" in parameters(type(model).forward)
        model(**{**({"use_cache": False} if takes_cache else {}), **inputs})
    return recorder.recording


@contextmanager
def _unchanged(model: Any) -> Iterator[None]:
    """Restore the attributes and the buffers of a model's modules: its mode, and caches of a pass."""
    states = [(module, dict(vars(module)), dict(module._buffers)) for module in model.modules()]
    try:
        yield
    finally:
        for module, attributes, buffers in states:
            vars(module).clear()
            vars(module).update(attributes)
            module._buffers.clear()
            module._buffers.update(buffers)


def functions_of(module: Any) -> Iterator[FunctionType]:
    """Yield the functions that a module may run: its methods, and functions that are set on it."""
    values = [*vars(module).values(), *(v for base in type(module).__mro__ for v in vars(base).values())]
    for value in values:
        yield from undecorated(getattr(value, "__func__", value))


def layer_of(name: str) -> int | None:
    numbers = [label for label in name.split(".") if label.isdigit()]
    return int(numbers[-1]) if numbers else None


class _Recorder:
    """The replacements and hooks of one pass."""

    def __init__(self, model: Any):
        self.recording = Recording()
        self.modules = [NamedModule(*item) for item in model.named_modules()]
        self.names = {id(named.module): named.name for named in self.modules}
        self.targets: dict[tuple[int, str], tuple[dict[str, Any], Any]] = {}
        self.users = [named for named in self.modules if self._find_targets(named.module)]
        self.is_inside = False  # of a recorded function, which may call others

    def _find_targets(self, module: Any) -> bool:
        """Add the global functions of a module's code that rotate; return whether there are any."""
        has_rotation = False
        for function in functions_of(module):
            namespace = function.__globals__
            for name in used_names(function.__code__) & namespace.keys():
                value = namespace[name]
                is_named = bool(_ROTARY_NAME.search(name)) and type(value) is FunctionType
                if value is function or not (rotates(value) or is_named or name == _ATTENTION):
                    continue
                self.targets[id(namespace), name] = namespace, value
                has_rotation |= name != _ATTENTION
        return has_rotation

    @contextmanager
    def replacements(self) -> Iterator[None]:
        """Replace the functions in the globals of the model's code."""
        try:
            for (_, name), (namespace, value) in self.targets.items():
                namespace[name] = _Attentions(value, self) if name == _ATTENTION else self._recorded(value)
            yield
        finally:
            for (_, name), (namespace, value) in self.targets.items():
                namespace[name] = value

    @contextmanager
    def hooks(self) -> Iterator[None]:
        """Record the positions of rotary modules, and the outputs of the children of rotating modules."""
        with ExitStack() as stack:
            for named in self.modules:
                if NAMES.search(type(named.module).__name__):
                    hook = functools.partial(self._keep_positions, named.name)
                    stack.callback(named.module.register_forward_pre_hook(hook, with_kwargs=True).remove)
            yield

    def _keep_positions(self, name: str, module: Any, args: Any, kwargs: Any) -> None:
        pos = kwargs.get("position_ids", args[1] if len(args) > 1 else None)
        if isinstance(pos, torch.Tensor):
            self.recording.positions[name] = pos

    def caller(self) -> str | None:
        """Return the name of the innermost module whose method is running."""
        frame: Any = sys._getframe(2)
        while frame is not None:
            if (name := self.names.get(id(frame.f_locals.get("self")))) is not None:
                return name
            frame = frame.f_back
        return None

    def _recorded(self, function: Function) -> Function:
        @functools.wraps(function)
        def recorded(*args: Any, **options: Any) -> Any:
            name = self.caller()
            if self.is_inside or name is None:
                return function(*args, **options)
            self.is_inside = True
            try:
                before = _copies(args, options)
                results = function(*args, **options)
                self._add(name, function, args, options, before, results)
            finally:
                self.is_inside = False
            return results

        return recorded

    def _add(
        self, name: str, function: Function, args: Any, options: Any, before: dict[Any, Any], results: Any
    ) -> None:
        """Add a call, if its results have the shapes of arguments."""
        after = [y for y in (results if isinstance(results, tuple) else (results,)) if _is_float(y)]
        keys = _keys_of_rotated(before, after)
        if not keys:
            return
        table = next((x for key, x in before.items() if key not in keys), None)
        seq_axis = _seq_axis_of(before[keys[0]], table, _unsqueeze_dim(function, args, options))
        others = {key: value for key, value in options.items() if key != "norms"}

        def rotate(x: Any) -> Any:
            with torch.no_grad():
                y = function(
                    *[x.clone() if key in keys else value for key, value in enumerate(args)],
                    **{key: x.clone() if key in keys else value for key, value in others.items()},
                )
            return y[0] if isinstance(y, tuple) else y

        xs = tuple(before[key] for key in keys)
        xs = HeadNorm.run(options["norms"], xs) if options.get("norms") else xs
        ys = tuple(y.detach().clone() for y in after)
        self.recording.calls.append(RotationCall(name, layer_of(name), xs, ys, seq_axis, rotate))

    def add_attention(self, module: Any, query: Any, key: Any) -> None:
        """Keep the query and the key of the first attention of a module."""
        name = self.names.get(id(module))
        if name is not None and name not in self.recording.attention:
            self.recording.attention[name] = query.detach().clone(), key.detach().clone()


class _Attentions:
    """The table of attention functions, whose functions record their query and key."""

    def __init__(self, table: Any, recorder: _Recorder):
        self.table, self.recorder = table, recorder

    def __getattr__(self, name: str) -> Any:
        return getattr(self.table, name)

    def get_interface(self, *args: Any) -> Function:
        return self._recorded(self.table.get_interface(*args))

    def __getitem__(self, name: str) -> Function:
        return self._recorded(self.table[name])

    def _recorded(self, function: Function) -> Function:
        @functools.wraps(function)
        def recorded(module: Any, query: Any, key: Any, *args: Any, **options: Any) -> Any:
            self.recorder.add_attention(module, query, key)
            return function(module, query, key, *args, **options)

        return recorded


# ---- arrays of a call ----


def _is_float(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())


def _copies(args: Any, options: Mapping[str, Any]) -> dict[Any, Any]:
    """Return copies of the arrays of a call by index or name: the function may write into them."""
    named: dict[Any, Any] = {**dict(enumerate(args)), **options}
    return {key: x.detach().clone() for key, x in named.items() if _is_float(x)}


def _keys_of_rotated(before: Mapping[Any, Any], after: list[Any]) -> list[Any]:
    """Return the keys of the arrays whose shapes the results have; none if one of them has no array."""
    keys: list[Any] = []
    for y in after:
        key = next((k for k, x in before.items() if k not in keys and x.shape == y.shape), None)
        if key is None or y.ndim < 3:
            return []
        keys.append(key)
    return keys


def _unsqueeze_dim(function: Function, args: Any, options: Any) -> int | None:
    """Return the argument `unsqueeze_dim` of a call, or its default."""
    bound = inspect.signature(function).bind(*args, **options)
    bound.apply_defaults()
    return bound.arguments.get("unsqueeze_dim")


def _seq_axis_of(x: Any, table: Any, unsqueeze_dim: int | None) -> int:
    """Return the axis of x as long as the tables (..., S, width); if there are two, by `unsqueeze_dim`."""
    length = x.shape[-2] if table is None or table.ndim < 2 else table.shape[-2]
    axes = [axis for axis in (-2, -3) if x.shape[axis] == length] or [-3]  # tables (S, 1, width)
    if len(axes) == 1 or table is None:
        return axes[0]
    return (None if unsqueeze_dim is None else _seq_axis(table.ndim, unsqueeze_dim)) or -2
