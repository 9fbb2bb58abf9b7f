"""No call changes a later call, an earlier result, or the settings of the process."""

import logging
from typing import Any

import numpy as np

from rope_array.testing._call import CallInputs, make
from rope_array.testing._contexts import fresh_call
from rope_array.testing._cover import field_specs
from rope_array.testing._failure import named
from rope_array.testing._judge import Input, Judge, check
from rope_array.testing._observe import call_unguarded, judge_results, rotated
from rope_array.testing._row import read_calls
from rope_array.testing._settings import changes, unusual_settings


@check("state", "inv_freq")
def fields_written_in_place(j: Judge) -> None:
    """Frequencies in a list or array, or a scaling rule, written since the last call are read again."""
    inputs = make(j, j.plain)
    frequencies: Any = [0.5 + i for i in range(len(j.pairs()[0][0]))]
    with_list = inputs._replace(spec={"inv_freq": frequencies})
    if _takes(j, with_list):
        frequencies[0] = 0.25
        with named("inv_freq was written since the last call"), j.if_served():
            rotated(j, with_list)
    for call in read_calls(j, "inv_freq=halving:float32"):
        with j.if_served():
            _check_written_array(j, make(j, call))
    rule: dict[str, Any] = {"rope_type": "linear", "factor": 2.0}
    with_rule = inputs._replace(spec={"scaling": rule})
    if j.claims("scaling") and _takes(j, with_rule):
        rule["factor"] = 5.0
        with named("scaling was written since the last call"), j.if_served():
            rotated(j, with_rule)


def _check_written_array(j: Judge, inputs: CallInputs) -> None:
    """Write to an array of frequencies between two calls, and judge the second."""
    array = inputs.spec["inv_freq"].array
    j.call(inputs.x, inputs.pos, **inputs.spec)
    if j.lib.overwrite(array, 0.75):
        y = j.call(inputs.x, inputs.pos, **inputs.spec)
        with named("an array of frequencies was written since the last call"):
            judge_results(j, inputs._replace(spec={"inv_freq": [0.75] * len(inputs.spec["inv_freq"])}), y)


def _takes(j: Judge, inputs: CallInputs) -> bool:
    """Call; return whether the call succeeds: a list may be refused, as jax.jit does."""
    try:
        j.call(inputs.x, inputs.pos, **inputs.spec)
    except Exception:
        return False
    return True


def _refusals(j: Judge) -> list[tuple[Any, Any, dict[str, Any]]]:
    """Return calls that most code refuses: too many positions, or axes of them, an odd width, no pairing."""
    inputs = make(j, j.plain)
    x, pos = inputs.xs[0], inputs.pos
    odd = Input(j.lib.asarray(x.values[..., 1:], j.dtype), x.values[..., 1:], j.dtype)
    return [
        (x, j.pos(j.row(3, 7)), {}),
        *([(x, pos, {"pairing": "none"})] if j.claims("pairing") else []),
        *([(odd, pos, {})] if j.width % 2 == 0 and not j.target.compiled else []),
        *([(x, pos, {"rotary_dim": 7})] if j.claims("rotary_dim") else []),
        (x, j.pos(np.zeros((5, 5, 5, 5, 5), int)), {}),
    ]


@check("state", "offset_positions")
def calls_after_an_exception(j: Judge) -> None:
    """A call that raises leaves nothing behind: the next call is right, and settings are as before."""
    inputs = make(j, j.plain)
    for refused in _refusals(j):
        before = j.lib.defaults()
        _raises(j, *refused)  # imports modules, which the next call does not
        lasting = {*changes(before, j.lib.defaults())}  # once changed, a second call may not change it again
        raised, changed = _watched(j, *refused)
        rotated(j, inputs)
        changed -= _watched(j, inputs.x, inputs.pos, {})[1]  # changed by every call
        changed -= {"environment variables"} if j.target.compiled else set()  # a compiler's own
        changed |= lasting
        assert not (raised and changed), f"a call that raises changed {', '.join(sorted(changed))}"
    for spec in j.budget.few(field_specs(j)[1:], 0):
        _raises(j, inputs.x, j.pos(j.row(3, 7)), spec)
        with named(f"after a call with {spec} that may raise"):
            rotated(j, inputs)


def _watched(j: Judge, x: Input, pos: Any, spec: dict[str, Any]) -> tuple[bool, set[str]]:
    """Call; return whether it raises, and the settings that it changes."""
    with unusual_settings():
        before = j.lib.state()
        raised = _raises(j, x, pos, spec)
        return raised, set(changes(before, j.lib.state()))


def _raises(j: Judge, x: Input, pos: Any, spec: dict[str, Any]) -> bool:
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # compilers log errors
    try:
        call_unguarded(j, x, pos, spec)
    except Exception:
        return True
    finally:
        logging.disable(level)
    return False


@check("state", "offset_positions")
def first_calls_under_other_settings(j: Judge) -> None:
    """The first call of a base or head_dim is right whatever the process's precision of decimals."""
    for spec in j.budget.few(field_specs(j), 2):
        new = j.plain if "inv_freq" in spec else fresh_call(j, j.plain)  # as many as pairs of the usual head
        inputs = make(j, new)
        inputs = inputs._replace(spec={**inputs.spec, **spec})
        with unusual_settings():
            y = j.try_call(inputs.x, inputs.pos, **inputs.spec)
        if y is not None:
            with named("under another precision of decimal, and other print options of NumPy"):
                judge_results(j, inputs, y)
            with named("after a call under another precision of decimal"), j.if_served():
                rotated(j, inputs)
