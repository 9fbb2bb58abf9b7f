"""Make mutants: rotary embeddings with one fault each, and the checks that have to fail for each.

A mutant is this library's `apply` with a fault as found in other code. A row states it:

    fault("float16_beyond_64_features", "widths_and_fields", "dtype == 'float16'", leave="..., 64:")

Read: the check `widths_and_fields` has to fail if code leaves the features from 64 on unrotated where the
dtype is float16, the condition. Conditions and changes are Python expressions in the names of `MutantCall`,
evaluated at each call:

x, pos, spec, or a field such as `base`
    Call `apply` with this value instead.
drop
    Names of fields to leave out.
y
    Return this value instead.
leave
    The elements at this index stay as they are in x.
gradient
    Return this gradient for x; `gradient` is the gradient of the result.
before, after
    Evaluate this for its effect, before or after `apply`.

A fault with more logic than that is a function: see `mutant` and `positions`. `refusing` makes correct code
that refuses some calls. With `arrays`, a mutant gets frequencies in arrays too: see `array_fault`.
"""

import ast
import builtins
import functools
import itertools
import time
from dataclasses import replace
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import numpy as np

import rope_array as ra
from rope_array.testing import Target
from rope_array.testing._factors import FIELDS
from rope_array.testing._library_target import apply_any, as_records


class Mutant(NamedTuple):
    """A faulty callable, its array library, and the names of the checks that it has to fail."""

    rotate: object
    library: str
    failed_checks: tuple[str, ...]
    arrays: bool = False
    of_inputs: bool = False  # whether it makes attention's inputs

    @property
    def name(self):
        return self.rotate.__name__

    def target(self):
        if self.of_inputs:
            return replace(target(ra.apply, self.library), attention_inputs=self.rotate)
        return target(self.rotate, self.library, self.arrays)


MUTANTS = []


def load_mutants():
    """Import the modules of mutants, which register them; return all mutants."""
    for path in sorted(Path(__file__).parent.glob("mutants*.py")):
        import_module(path.stem)
    return MUTANTS


def target(rotate, library, arrays=False):
    """Make a target that claims all fields, all dtypes and the contract, so that every check applies.

    Checks with frequencies in arrays apply if `arrays` is True.
    """
    narrow = {"numpy": ("float16",), "torch": ("float16",), "jax": ("bfloat16",)}
    dtypes = ("float32", "float64", *narrow.get(library, ()))

    @functools.wraps(rotate)
    def call(x, pos, **spec):
        return rotate(x, pos, **as_records(spec))  # `scaling` and `axes` as rope_array's classes

    claims = {"fields": tuple(FIELDS), "dtypes": dtypes, "angles": "exact", "furthest": 2**62}
    claims["requires"] = ("array_frequencies",) if arrays else ()
    return Target(call, library=library, declared=True, **claims)


def each(function):
    """Rotate a tuple array by array."""

    @functools.wraps(function)
    def call(x, pos, **spec):
        if isinstance(x, tuple):
            return tuple(function(array, pos, **spec) for array in x)
        return function(x, pos, **spec)

    return call


def mutant(kills, library="numpy", whole=False, arrays=False):
    """Register a function as a mutant that fails the checks named in `kills`.

    With `whole`, x may be a tuple of arrays; else the function takes them one by one. With `arrays`, it takes
    frequencies in an array.
    """

    def register(function):
        rotate = function if whole else each(function)
        MUTANTS.append(Mutant(rotate, library, tuple(kills.split()), arrays))
        return rotate

    return register


def inputs_mutant(kills, library="numpy"):
    """Register a function with the arguments of `Target.attention_inputs` as a mutant."""

    def register(make):
        MUTANTS.append(Mutant(make, library, tuple(kills.split()), of_inputs=True))
        return make

    return register


def refusing(refuses, error=ValueError, base_only=False):
    """Return correct code that refuses some calls: of every field, or of base alone."""

    def check(x, pos, spec):
        if any(refuses(array, pos, spec) for array in (x if isinstance(x, tuple) else (x,))):
            raise error("another call")

    def of_base(x, pos, base=10000.0):
        check(x, pos, {})
        return ra.apply(x, pos, base=base)

    def of_all(x, pos, **spec):
        check(x, pos, spec)
        return ra.apply(x, pos, **as_records(spec))

    return of_base if base_only else of_all


def named(name):
    """Return the function of a mutant."""
    (rotate,) = (mutant.rotate for mutant in load_mutants() if mutant.name == name)
    return rotate


def fault(
    name, kills, when="True", *, library="numpy", whole=False, arrays=False, drop="", leave=None, **changes
):
    """Register a mutant with a fault where the condition `when` holds; see the top of this module."""
    if leave is not None:
        changes["y"] = f"put(y, np.s_[{leave}], x[{leave}])"
    condition = expression(when)
    changes = {changed: expression(text) for changed, text in changes.items()}
    state = {}

    def rotate(x, pos, **spec):
        call = MutantCall(x, pos, spec, state, library)
        if call.value(condition):
            call.change(changes, drop.split())
        return call.y

    rotate.__name__ = rotate.__qualname__ = name
    mutant(kills, library, whole, arrays)(rotate)


def positions(kills, when="True", **options):
    """Register a mutant that rotates to other positions, which the function returns for a `MutantCall`."""
    return lambda function: fault(function.__name__, kills, when, pos=function, **options)


def array_fault(name, kills, when="True", **options):
    """Register a mutant with a fault in calls with frequencies in an array."""
    fault(name, kills, f"in_array and ({when})", arrays=True, **options)


torch_fault = functools.partial(fault, library="torch")
jax_fault = functools.partial(fault, library="jax")


def expression(text):
    """Compile an expression; raise if it has a name that nothing defines. A function stays as it is."""
    if callable(text):
        return text
    tree = ast.parse(text, mode="eval")
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    bound = {name.id for name in names if isinstance(name.ctx, ast.Store)}
    defined = {*NAMES, *ABBREVIATIONS, *GIVEN, *dir(MutantCall), *dir(builtins)}
    unknown = {name.id for name in names} - bound - defined
    if unknown:
        raise NameError(f"{text!r}: {unknown}")
    return compile(tree, f"<{text}>", "eval")


GIVEN = {"x", "pos", "spec", "state"}
# Names with a value in each call, as expressions of others.
ABBREVIATIONS = {
    "dtype": "str(x.dtype).rpartition('.')[2]",
    "ndim": "x.ndim",
    "width": "x.shape[-1]",
    "rows": "x.shape[-2] if x.ndim > 1 else 0",
    "heads": "x.shape[1] if x.ndim == 4 else 0",
    "numbers": "np.asarray(pos)",
    "pos_ndim": "getattr(pos, 'ndim', 0)",  # of an array of any library
    "pos_is_array": "isinstance(pos, np.ndarray)",
    "pos_is_row": "pos_is_array and pos.ndim == 1 and pos.size > 1",  # (S,)
    "pos_is_batch": "pos_is_array and pos.ndim == 2 and pos.size > 1",  # (B, S)
    "fields": "spec.keys()",
    "base": "spec.get('base', 10000.0)",
    "half": "spec.get('pairing') == 'half'",
    "inv_freq": "spec['inv_freq']",
    "in_array": "hasattr(spec.get('inv_freq'), 'dtype')",
    "inverse": "spec.get('inverse', False)",
    "factor": "spec.get('attention_factor', 1.0)",
    "rule": "spec.get('scaling')",
    "axes": "spec.get('axes')",
    "one_series": "axes is not None and not axes.widths and not axes.indices",  # over all pairs
    "rotary_start": "spec.get('rotary_start', 0)",
    "rotary_dim": "spec.get('rotary_dim', width)",
    "rotated": "width - rotary_start if spec.get('rotary_dim') is None else rotary_dim",
    "gradient": "x",  # in the expression for a gradient, which takes the place of x
    "torch": "import_module('torch')",
    "jax": "import_module('jax')",
    "jnp": "import_module('jax.numpy')",
    "no_grad": "not torch.is_grad_enabled()",  # under no_grad or inference_mode
    "forward": "import_module('torch.autograd.forward_ad')",
    "tangent": "forward.unpack_dual(x).tangent if forward._current_level >= 0 else None",
    "inference": "torch.is_inference_mode_enabled()",
    "autocast": "torch.is_autocast_enabled('cpu')",
    "traced": "is_traced(x)",
    "mapped": "is_mapped(x)",
}


class MutantCall:
    """A call of a mutant: the names in the expressions of a row."""

    def __init__(self, x, pos, spec, state, library):
        self.x, self.pos, self.spec = x, pos, spec
        self.state = state  # a dict that belongs to the mutant
        self._library = library
        self._backward = None

    def __getitem__(self, name):
        if name in ABBREVIATIONS:
            return self.value(ABBREVIATIONS[name])
        if name in GIVEN or hasattr(type(self), name):
            return getattr(self, name)
        raise KeyError(name)

    def value(self, code):
        return code(self) if callable(code) else eval(code, NAMES, self)

    def change(self, changes, drop):
        """Apply the changes of a row."""
        changes = dict(changes)
        later = {name: changes.pop(name, None) for name in ("y", "after")}
        self._backward = changes.pop("gradient", None)
        values = {name: self.value(code) for name, code in changes.items()}
        for name in ("x", "pos", "spec", "before"):
            if name in values:
                setattr(self, name, values.pop(name))
        self.spec = {name: value for name, value in {**self.spec, **values}.items() if name not in drop}
        if later["y"]:
            self.y = self.value(later["y"])
        if later["after"]:
            self.y  # noqa: B018 (the effect comes after the rotation)
            self.value(later["after"])

    @functools.cached_property
    def y(self):
        """The result."""
        if self._backward is None:
            return apply_any(self.x, self.pos, **self.spec)
        library, spec, state, code = self._library, self.spec, self.state, self._backward

        def backward(gradient, pos):  # without a reference to this call, and so to x and y
            return MutantCall(gradient, pos, spec, state, library).value(code)

        rotate = jax_with_gradient if library.startswith("jax") else torch_with_gradient
        return rotate(self.x, self.pos, spec, backward)

    # ---- gradients ----

    def adjoint(self, pos=None, drop="", **fields):
        """Return the gradient of x, the inverse rotation, but by other positions or fields."""
        spec = {**self.spec, "inverse": not self.spec.get("inverse", False)}
        if spec.keys() & {"attention_factor", "scaling"}:  # the reciprocal amplitude
            plain = {name: value for name, value in spec.items() if name not in ("inverse", "seq_axis")}
            spec["attention_factor"] = 1 / ra.RoPE(self.x.shape[-1], **plain).amplitude
        spec = {name: value for name, value in {**spec, **fields}.items() if name not in drop.split()}
        return apply_any(self.x, self.pos if pos is None else pos, **spec)

    # ---- memory between calls ----

    def kept(self, key, value):
        """Return what the first call with this key kept, else keep a value."""
        return self.state.setdefault(key, value)

    def first(self, key):
        """Return whether no call with this key has returned before."""
        self.y  # noqa: B018 (a call that raises does not count)
        new = key not in self.state
        self.state[key] = True
        return new

    def as_first_seen(self, array):
        """Return a copy of the latest array as it was when it was first given."""
        latest, copy = self.state.get("latest", (None, None))
        if latest is not array:
            latest, copy = self.state["latest"] = array, array.copy()
        return copy

    def shared(self, value):
        """Keep a value where other threads write theirs, let one run, and read it again."""
        self.state["shared"] = value
        time.sleep(1e-4)
        return self.state["shared"]

    def scratch(self, array, seconds=1e-4):
        """Copy an array to memory that all threads share, and let another run."""
        memory = self.kept(("scratch", array.shape, array.dtype), np.empty_like(array))
        memory[...] = array
        time.sleep(seconds)
        return memory

    def in_a_ring(self, array, count):
        """Copy an array to the oldest of `count` buffers."""
        ring = self.kept(("ring", array.shape, array.dtype), [])
        ring.append(ring.pop(0) if len(ring) == count else np.empty_like(array))
        ring[-1][...] = array
        return ring[-1][...]


def torch_with_gradient(x, pos, spec, backward):
    """Rotate with the gradient backward(gradient, pos)."""
    torch = import_module("torch")

    class Rotated(torch.autograd.Function):
        @staticmethod
        def forward(context, x, pos):
            context.pos = pos
            return apply_any(x, pos, **spec)

        @staticmethod
        def backward(context, gradient):
            return backward(gradient, context.pos), None

    return Rotated.apply(x, pos)


def jax_with_gradient(x, pos, spec, backward):
    """Rotate with the gradient backward(gradient, pos)."""
    jax = import_module("jax")

    @jax.custom_vjp
    def rotated(x, pos):
        return apply_any(x, pos, **spec)

    rotated.defvjp(lambda x, pos: (rotated(x, pos), pos), lambda pos, g: (backward(g, pos), None))
    return rotated(x, pos if isinstance(pos, jax.Array) else jax.numpy.asarray(pos))


def is_traced(x):
    """Return whether jax.jit traces x; vmap and gradients without jit have other tracers."""
    return type(x).__name__ == "DynamicJaxprTracer"


def is_mapped(x):
    """Return whether jax.vmap or torch.vmap maps over x."""
    if type(x).__module__.startswith("jax"):
        return type(x).__name__ == "BatchTracer"
    return hasattr(x, "device") and import_module("torch")._C._functorch.is_batchedtensor(x)


# ---- functions in expressions ----


def put(y, index, values):
    """Write elements of y, and return it."""
    y[index] = values
    return y


def write(array, values):
    array[...] = values


def nudged(y, where=...):
    """Replace some elements by the next float: the bits differ, but the contract holds."""
    y = y.copy()
    y[where] = np.nextafter(y[where], np.asarray(np.inf, y.dtype))
    return y


def to_bfloat16(array):
    """Round to bfloat16, in float32."""
    bits = np.asarray(array, np.float32).view(np.uint32)
    return (bits + 0x8000 & 0xFFFF0000).astype(np.uint32).view(np.float32)


def powers(base, step, width, count):
    """Return base^(step·i/width) for i from 0 to count - 1."""
    return [base ** (step * i / width) for i in range(count)]


def power_of_2_in(number):
    """Return the largest power of two that is no larger."""
    return 2 ** (number.bit_length() - 1)


def by_index(positions, dtype, axis=None):
    """Replace each position, or row of them, by its index in this dtype, and look them up again."""
    values, index = np.unique(positions, axis=axis, return_inverse=True)
    return values[index.astype(dtype).reshape(-1 if axis == 0 else positions.shape)]


def with_coordinates(axes, coordinates, pos):
    """Return a map of the same coordinates of positions to other pairs."""
    return replace(axes, coordinates=tuple(coordinates), count=np.shape(pos)[-1])


def in_memory_order(array):
    """Return the elements in the order of memory, as code that takes an array for contiguous reads them."""
    return array.ravel("K").reshape(array.shape)


def with_strides(array, *strides):
    """Read the memory from the first element on with other strides."""
    return np.lib.stride_tricks.as_strided(array, array.shape, strides)


_FUNCTIONS = [put, write, nudged, to_bfloat16, powers, power_of_2_in, by_index, with_coordinates, is_traced]
_FUNCTIONS += [in_memory_order, with_strides, is_mapped, replace, import_module, Decimal]
NAMES = {function.__name__: function for function in _FUNCTIONS}
NAMES |= {"np": np, "ra": ra, "count": itertools.count}
ABBREVIATIONS = {name: expression(text) for name, text in ABBREVIATIONS.items()}
