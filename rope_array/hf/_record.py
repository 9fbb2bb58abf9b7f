"""Record the rotations of one forward pass of a model.

For the pass, a recorder replaces each function that takes cos and sin in the globals of the model's code, and
finds the calling module in the frames of its callers. So it sees the model's own functions, functions that a
user has put in their place, and the functions of `patch`. Queries and keys are recorded again where attention
receives them: a rotation that is repeated, undone or lost shows there.
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
from torch.nn import functional

from ._attention import parameters, rotates, seq_axis_of
from ._attributes import MARK
from ._norm import HeadNorm
from ._rebind import undecorated, used_names
from ._report import pattern_of
from ._rotary import NAMES, has_frequencies

Function = Callable[..., Any]
# Functions with other parameters than cos and sin, such as freqs_cis.
_ROTARY_NAME = re.compile("apply_.*(rot|rope)|rotary_emb|rotate_queries")


@dataclass(frozen=True)
class RotationCall:
    """A call, by a module, of a function that rotates arrays such as q and k.

    `layer` is the number in the module's name, or None. `rotate` calls the same function with the same tables
    for another array of the shape of `before[0]`, but any number of heads.
    """

    name: str
    layer: int | None
    before: tuple[Any, ...]
    after: tuple[Any, ...]
    seq_axis: int
    rotate: Function


@dataclass
class Recording:
    """The calls of a pass that rotate, and other arrays by the name of a module.

    `attention` has the query and the key that a module's attention function received, `outputs` the outputs
    of the children of a module whose code rotates, such as q_proj, and `positions` the argument of a rotary
    module. `users` names the modules whose code rotates, and those in the same place of other layers.
    """

    calls: list[RotationCall] = field(default_factory=list)
    attention: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    outputs: dict[str, list[Any]] = field(default_factory=dict)
    positions: dict[str, Any] = field(default_factory=dict)
    users: list[str] = field(default_factory=list)


def observe(model: Any, inputs: Mapping[str, Any]) -> Recording:
    """Run one forward pass of a model, without gradients, and return its arrays. The model stays as it is."""
    with _unchanged(model), torch.no_grad(), torch.compiler.set_stance("force_eager"):
        recorder = _Recorder(model)
        with recorder.installed(), torch.random.fork_rng(devices=()):
            takes_cache = "use_cache" in parameters(type(model).forward)
            model.eval()(**({"use_cache": False} if takes_cache else {}) | dict(inputs))
    return recorder.recording


@contextmanager
def _unchanged(model: Any) -> Iterator[None]:
    """Restore the attributes of a model's modules: modes, hooks, caches of a pass, and frequencies."""
    buffers = [b for module in model.modules() if has_frequencies(module) for b in module.buffers(False)]
    numbers = [(buffer, buffer.clone()) for buffer in buffers]  # LongRoPE's are written in place
    every = [vars(module) for module in model.modules()]
    dicts = [*every, *(value for state in every for value in state.values() if isinstance(value, dict))]
    copies = [(state, dict(state)) for state in dicts]
    try:
        yield
    finally:
        for state, values in copies:
            state.clear()
            state.update(values)
        for buffer, before in numbers:
            if not torch.equal(buffer, before):
                buffer.copy_(before)


def functions_of(module: Any) -> Iterator[FunctionType]:
    """Yield the functions that a module may run: its methods, and functions that are set on it."""
    values = [*vars(module).values(), *(v for base in type(module).__mro__ for v in vars(base).values())]
    for value in values:
        yield from undecorated(getattr(value, "__func__", value))


def layer_of(name: str) -> int | None:
    """Return the last number in the name of a module; None if it has none."""
    numbers = [label for label in name.split(".") if label.isdigit()]
    return int(numbers[-1]) if numbers else None


class _Recorder:
    """The replacements and hooks of one pass."""

    def __init__(self, model: Any):
        self.recording = Recording()
        self.names: dict[int, str] = {id(module): name for name, module in model.named_modules()}
        self.functions: dict[tuple[int, str], tuple[dict[str, Any], str, Any]] = {}
        self.tables: set[Any] = set()  # the classes of tables of attention functions
        self.modules = list(model.modules())
        users = {pattern_of(self.names[id(m)]) for m in self.modules if self._find_functions(m)}
        # A layer with code of its own is among the layers whose code is known.
        self.users = [module for module in self.modules if pattern_of(self.names[id(module)]) in users]
        self.recording.users = [self.names[id(module)] for module in self.users]
        self.is_inside = False  # of a recorded function, which may call others

    def _find_functions(self, module: Any) -> bool:
        """Add the global functions of a module's code that rotate; return whether there are any."""
        count = 0
        for function in functions_of(module):
            namespace = function.__globals__
            for name in used_names(function.__code__) & namespace.keys():
                value = namespace[name]
                is_named = bool(_ROTARY_NAME.search(name)) and type(value) is FunctionType
                if hasattr(type(value), "get_interface"):  # ALL_ATTENTION_FUNCTIONS
                    self.tables.add(type(value))
                elif value is not function and (is_named or rotates(value)):
                    self.functions[id(namespace), name] = namespace, name, value
                    count += 1
        return bool(count)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replace the functions, and set the hooks, which `_unchanged` removes."""
        with ExitStack() as stack:
            for namespace, name, value in self.functions.values():
                stack.callback(namespace.__setitem__, name, value)
                namespace[name] = self._recorded(value)
            for cls in self.tables:
                stack.callback(setattr, cls, "get_interface", cls.get_interface)
                cls.get_interface = self._recording_attention(cls.get_interface)
            kernel = functional.scaled_dot_product_attention
            stack.callback(setattr, functional, "scaled_dot_product_attention", kernel)
            functional.scaled_dot_product_attention = self._recording_kernel(kernel)
            for module in self.modules:
                if NAMES.search(type(module).__name__):
                    module.register_forward_pre_hook(self._keep_positions, with_kwargs=True)
            for user in self.users:
                # A hook on a norm would keep a patched attention from one pass with its rotation.
                for child in user.modules() if MARK not in vars(user) else ():
                    child.register_forward_hook(functools.partial(self._keep_output, self.names[id(user)]))
            yield

    def _keep_positions(self, module: Any, args: Any, options: Any) -> None:
        pos = options.get("position_ids", args[1] if len(args) > 1 else None)
        if isinstance(pos, torch.Tensor):
            self.recording.positions[self.names[id(module)]] = pos

    def _keep_output(self, name: str, module: Any, args: Any, output: Any) -> None:
        # A norm after the rotation (HunYuan) has another array than before it.
        is_rotated = any(call.name == name for call in self.recording.calls)
        if isinstance(output, torch.Tensor) and not is_rotated:
            self.recording.outputs.setdefault(name, []).append(output.clone())

    def _recording_attention(self, method: Function) -> Function:
        """Return a method whose attention functions keep the query and the key."""

        def attend(function: Function, module: Any, query: Any, key: Any, *args: Any, **options: Any) -> Any:
            if (name := self.names.get(id(module))) is not None:
                self.recording.attention.setdefault(name, (query.clone(), key.clone()))
            return function(module, query, key, *args, **options)

        return lambda table, *args: functools.partial(attend, method(table, *args))

    def _recording_kernel(self, function: Function) -> Function:
        """Return PyTorch's attention, which keeps the first query and key that a module's code gives it."""
        seen: set[str] = set()

        def attend(query: Any, key: Any, *args: Any, **options: Any) -> Any:
            if (name := self._caller()) is not None and name not in seen:
                seen.add(name)
                self.recording.attention[name] = query.clone(), key.clone()
            return function(query, key, *args, **options)

        return attend

    def _caller(self) -> str | None:
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
            name = self._caller()
            # Rotations after attention are of values (DeepSeek V4).
            if self.is_inside or name is None or name in self.recording.attention:
                return function(*args, **options)
            self.is_inside = True
            try:
                bound = inspect.signature(function).bind(*args, **options)
                bound.apply_defaults()
                named: dict[Any, Any] = {**dict(enumerate(args)), **options}
                # Copies: the function may write into its arrays.
                before = {key: x.clone() for key, x in named.items() if _is_float(x)}
                results = function(*args, **options)
                dim = bound.arguments.get("unsqueeze_dim")
                self._add(name, function, args, options, before, results, dim)
            finally:
                self.is_inside = False
            return results

        return recorded

    def _add(
        self, name: str, function: Function, args: Any, options: Any, before: Any, results: Any, dim: Any
    ) -> None:
        """Add a call, if each result has the shape of an argument."""
        after = [y.clone() for y in (results if isinstance(results, tuple) else (results,)) if _is_float(y)]
        keys: list[Any] = []
        for y in after:
            keys += [
                key for key, x in before.items() if key not in keys and x.ndim > 2 and x.shape == y.shape
            ][:1]
        if not after or len(keys) < len(after):
            return
        xs = tuple(before.pop(key) for key in keys)
        seq_axis = _axis_of_positions(xs, [*before.values()], dim)
        norms = options.pop("norms", ())  # of a patched attention, whose function applies them
        xs = HeadNorm.run(norms, xs) if norms else xs

        def rotate(x: Any) -> Any:
            new = [x.clone() if key in keys else value for key, value in enumerate(args)]
            named = {key: x.clone() if key in keys else value for key, value in options.items()}
            with torch.no_grad():
                y = function(*new, **named)
            return y[0] if isinstance(y, tuple) else y

        self.recording.calls.append(RotationCall(name, layer_of(name), xs, tuple(after), seq_axis, rotate))


def _is_float(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())


def _axis_of_positions(xs: Any, tables: list[Any], unsqueeze_dim: int | None) -> int:
    """Return the axis as long as the tables (..., S, width); if there are two, by `unsqueeze_dim`."""
    if not tables or tables[0].ndim < 2:
        return -2
    length = tables[0].shape[-2]
    # Queries may be fewer than keys.
    axes = [axis for test in (all, any) for axis in (-2, -3) if test(x.shape[axis] == length for x in xs)]
    if len({*axes}) == 2 and unsqueeze_dim is not None:
        return seq_axis_of(tables[0].ndim, unsqueeze_dim) or -2
    return axes[0] if axes else -3  # tables (S, 1, width)
