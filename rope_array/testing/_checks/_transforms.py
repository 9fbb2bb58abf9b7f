"""Gradients, compilation, and arrays that are computed later."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from rope_array.testing._case import (
    COTANGENTS,
    MAPS,
    NEAR,
    Case,
    check_adjoint,
    check_gradient,
    check_second_gradient,
    claimed_shape,
    claimed_widths,
    fits,
    in_tuples,
    layout_name,
    orders,
    plain_case,
    position_kinds,
)
from rope_array.testing._checks._alone import (
    as_text,
    at_widths,
    axes_of_width,
    rules,
    single_fields,
    with_both_pairings,
)
from rope_array.testing._checks._together import (
    FIELDS,
    check_cases,
    check_covering,
    field_levels,
    is_compiled,
    plain_levels,
    simple_cases,
    some_widths,
)
from rope_array.testing._covering import pairs_among
from rope_array.testing._judge import Input, Judge, check

_ROWS = ((2, 5, 5), (1, 70, 2), (2, 3, 5), (40, 2, 1), (2, 1, 600))


def _check_gradient(j: Judge, x: Input, g: Input, pos: Any, **spec: Any) -> None:
    if not check_gradient(j, [x], [g], j.pos(pos), pos, **spec):
        j.raise_refused("refuses to record a gradient")


@check("gradient", each_dtype=True)
def gradient(j: Judge, dtype: str) -> None:
    """The gradient with respect to x is the adjoint rotation of the cotangent."""
    _check_gradient(j, j.x(dtype=dtype), j.x(dtype=dtype, seed=1), j.positions())


@check("gradient", "offset_positions")
def gradient_of_a_step(j: Judge) -> None:
    """The gradient of a decoding step, one row, is the adjoint rotation of the cotangent."""
    _check_gradient(j, j.x(2, 3, 1, 16), j.x(2, 3, 1, 16, seed=1), j.row(17, 1))


@check("gradient", "batch_positions", "offset_positions")
def gradient_of_a_batch(j: Judge) -> None:
    """The gradient at positions of shape (B, S) is the adjoint rotation of the cotangent."""
    _check_gradient(j, j.x(), j.x(seed=1), np.stack([j.row(3, 5), j.row(40, 5)]))


@check("gradient")
def gradient_of_a_sum(j: Judge) -> None:
    """The gradient is right for a cotangent that is one number broadcast, as the gradient of a sum is."""
    x = j.x()
    ones = j.array(np.ones((1, 1, 1, 1)))
    g = Input(j.lib.expanded(ones.array, x.values.shape), np.ones(x.values.shape), x.dtype)
    _check_gradient(j, x, g, j.positions())


@check("gradient", "attention_factor")
def gradient_keeps_the_amplitude(j: Judge) -> None:
    """The gradient multiplies by the attention factor; the inverse divides by it."""
    _check_gradient(j, j.x(), j.x(seed=1), j.positions(), attention_factor=2.0)


@check("gradient", "rotary_dim")
def gradient_of_a_part(j: Judge) -> None:
    """The gradient of features that are not rotated is their cotangent."""
    _check_gradient(j, j.x(), j.x(seed=1), j.positions(), rotary_dim=8)


@check("gradient", "pairing")
def gradient_of_half_pairing(j: Judge) -> None:
    """The gradient is right for both pairings, at narrow and wide heads."""
    _check_cases(j, *(_case(j, pairing=name, width=_wide(j, 64)) for name in ("half", "interleaved")))
    _check_cases(j, _case(j, pairing="half"))


@check("gradient", "out_pairing")
def gradient_of_out_pairing(j: Judge) -> None:
    """The gradient reads the cotangent's pairs by out_pairing and writes pairs by pairing."""
    usual = j.target.defaults["pairing"]
    _check_cases(j, _case(j, out_pairing="half" if usual == "interleaved" else "interleaved"))


@check("gradient", "inverse")
def gradient_of_the_inverse(j: Judge) -> None:
    """The gradient of the inverse is the forward rotation of the cotangent."""
    _check_cases(j, _case(j, inverse=True))


@check("gradient")
def gradient_at_wide_heads(j: Judge) -> None:
    """The gradient is right at wide heads, and for many heads, batches and rows."""
    _check_cases(j, *(_case(j, width=_wide(j, width)) for width in (64, 128)))
    _check_cases(j, *(_case(j, rows=rows) for rows in ((1, 70, 2), (40, 2, 2), (1, 1, 600))))


@check("gradient")
def gradient_of_many_elements(j: Judge) -> None:
    """The gradient is right for an x of more than 2^17 elements, with either pairing, in two dtypes."""
    plain, other = (with_both_pairings(j, [{}]) * 2)[:2]
    batch = "BS" if claimed_shape(j, "BS") else "S"
    values = ((plain, "S", j.dtypes[0]), (other, batch, j.dtypes[-1]), (plain, batch, j.dtypes[0]))
    large = [
        _case(j, rows=(2, 8, 130), width=_wide(j, 64), positions=shape, dtype=dtype, **some)
        for some, shape, dtype in values
    ]
    _check_cases(j, *_few(j, large, 1))


@check("gradient", "tuple")
def gradient_of_a_tuple(j: Judge) -> None:
    """The gradient is right for every array of a tuple, also if the others need none."""
    _check_cases(j, *(_case(j, in_tuple=value) for value in in_tuples(j)))
    x, g, pos = [j.x(seed=0), j.x(seed=1)], j.x(seed=2), j.positions()
    if not j.claims("tuple[2]") or j.try_call(tuple(x), j.pos(pos)) is None:
        return
    for i in (0, 1):
        arrays = [one.array for one in x]

        def rotated(array: Any, i: int = i, arrays: list[Any] = arrays) -> Any:
            arrays[i] = array
            return j.call(tuple(arrays), j.pos(pos))[i]

        with j.part(f"a tuple of which array {i} alone needs a gradient"):
            check_adjoint(j, j.lib.gradient(rotated, x[i].array, g.array), x[i], g, pos)


@check("gradient", "strides")
def gradient_of_strides(j: Judge) -> None:
    """The gradient of an x of any strides is right, and so is the value while it is recorded."""
    _check_cases(j, *(_case(j, layout=layout) for layout in _layouts(j)))


@check("gradient")
def gradient_of_a_strided_cotangent(j: Judge) -> None:
    """The gradient is right for a cotangent that is transposed, sliced or broadcast."""
    _check_cases(j, *(_case(j, gradient=name) for name in _cotangents(j)))


@check("gradient")
def gradient_twice(j: Judge) -> None:
    """A gradient asked for twice is the same, and so is the gradient of the next call."""
    x, g, pos = j.x(), j.x(seed=1), j.positions()
    array_pos = j.pos(pos)
    y, pull = j.lib.pullback(lambda array: j.call(array, array_pos), x.array)
    pulled: tuple[Any, ...]
    try:
        pulled = j.lib.pulled_twice(pull, g.array)
    except Exception:  # compiled code may free what it saved
        pulled = (pull(g.array),)
    for one in pulled:
        check_adjoint(j, one, x, g, pos)
    j.check(y, x, pos)
    _check_gradient(j, x, j.x(seed=2), pos)


@check("gradient")
def gradient_of_one_field(j: Judge) -> None:
    """The gradient is right for every field alone, at narrow and wide heads, and for many rows."""
    fields = [some for some in single_fields(j) if "in_tuple" not in some]
    if is_compiled(j):
        fields.sort(key=lambda some: not some.keys() & {"rotary_dim", "base"})
        return _check_cases(j, *(_case(j, **some) for some in fields[: 10 if j.lib.calls < 1000 else 2]))
    dtypes = (j.dtypes[0], j.dtypes[-1])
    _check_cases(j, *(_case(j, **some, dtype=dtype) for some in fields for dtype in dtypes))
    wide = at_widths(with_both_pairings(j, fields), [_wide(j, 128)], j.dtypes[:1])
    _check_cases(j, *(_case(j, **some) for some in wide))
    _check_cases(j, *(_case(j, **some, rows=rows) for some in fields for rows in ((1, 37, 30), (1, 1, 2100))))


@check("gradient", "scaling")
def gradient_of_scaling(j: Judge) -> None:
    """The gradient has the frequencies and the amplitude of each scaling rule."""
    rotated = rules(plain_case(j).num_pairs(j))
    _check_cases(j, *(_case(j, scaling=as_text(rule)) for rule in _few(j, rotated[3:] + rotated[:3], 1)))
    if not is_compiled(j):
        long = {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 64}
        _check_cases(j, *(_case(j, scaling=as_text(long), **some) for some in with_both_pairings(j, [{}])))
        if j.claims("inverse"):
            _check_cases(j, _case(j, scaling=as_text(long), inverse=True))


@check("gradient", "axes", "any_positions")
def gradient_of_axes(j: Judge) -> None:
    """The gradient of each pair is rotated by the pair's own coordinate, for axes of every kind."""
    _check_cases(j, *(_case(j, axes=name) for name in _few(j, [*MAPS], 2)))
    for width in () if is_compiled(j) else (j.width, _wide(j, 64)):
        pos = j.wrap(np.array([[900, 7, 3000], [41, 5000, 12], [3, 30, 6]]))
        for name, (axes, count) in axes_of_width(width).items():
            with j.part(f"axes with {name}"), j.if_served():
                x, g = j.x(1, 2, 3, width), j.x(1, 2, 3, width, seed=1)
                _check_gradient(j, x, g, pos[:, :count], axes=axes)


@check("gradient", "offset_positions")
def gradient_at_far_positions(j: Judge) -> None:
    """The value while a gradient is recorded, and the gradient, are right at far positions of each dtype."""
    kinds = _few(j, [kind for kind in position_kinds(j) if not kind.startswith("python")], 1)
    reaches = [min(j.target.reach, reach) for reach in _few(j, [4001, 2**16, 2**31 - 1], 1)]
    shapes = _few(j, [shape for shape in ("S", "BS", "BHS") if claimed_shape(j, shape)], 1)
    _check_cases(j, *(_case(j, reach=reach, kind=kind) for kind in kinds for reach in reaches))
    _check_cases(j, *(_case(j, reach=reach, positions=shape) for shape in shapes for reach in reaches))
    wide = [
        {"width": width, **some} for width in (j.width, _wide(j, 128)) for some in with_both_pairings(j, [{}])
    ]
    dtypes = _few(j, j.dtypes[::-1], 1)
    _check_cases(
        j, *(_case(j, **some, dtype=dtype, reach=reaches[0]) for dtype in dtypes for some in _few(j, wide, 1))
    )


@check("gradient")
def gradient_of_a_gradient(j: Judge) -> None:
    """The gradient of a gradient is the forward rotation, as the gradient is linear in the cotangent."""
    names = ("pairing", "out_pairing", "inverse", "attention_factor", "rotary_dim", "seq_axis")
    fields = [some for some in single_fields(j) if not some or some.keys() & {*names}]
    served = 0
    for some in _few(j, fields, 1):
        with j.part(
            "".join(f"{name}={value}: " for name, value in some.items()) + "the gradient of a gradient"
        ):
            served += check_second_gradient(j, j.x(), j.x(seed=1), j.x(seed=2), j.positions(), **some)
    if not served:
        j.raise_refused("the gradient of a gradient raises an error")


@check("gradient")
def gradient_combinations(j: Judge) -> None:
    """Values and gradients are right with any two claimed fields, and with sizes, dtypes and strides."""
    layouts = _layouts(j) if j.claims("strides") else ()
    levels = plain_levels(
        j,
        **field_levels(j),
        dtype=j.dtypes,
        rows=_ROWS[:2] if is_compiled(j) else _ROWS,
        width=list(dict.fromkeys((j.width, *some_widths(j, *((64,) if is_compiled(j) else (64, 128)))))),
        positions=[shape for shape in ("S", "BS", "BHS") if claimed_shape(j, shape)],
        reach=list(dict.fromkeys(min(reach, j.target.reach) for reach in (NEAR, 2**17))),
        order=orders(j),
        layout=[None, *layouts],
        gradient=_cotangents(j),
    )
    groups = [
        *pairs_among(
            (*FIELDS, "rows", "width", "positions", "reach", "order", "layout", "gradient", "dtype")
        ),
        *(("dtype", "rows", "positions"), ("dtype", "width", "pairing"), ("rows", "pairing", "inverse")),
    ]
    check_covering(j, levels, groups, few=8)
    if not is_compiled(j):
        _check_cases(j, *(case._replace(gradient="contiguous") for case in simple_cases(j, j.dtypes, 3)))


def _case(j: Judge, **values: Any) -> Case:
    return plain_case(j)._replace(**{"gradient": "contiguous", **values})


def _few(j: Judge, values: Iterable[Any], count: int) -> list[Any]:
    """Return all values; the first ones if each call is compiled."""
    return list(values)[: count if is_compiled(j) else None]


def _check_cases(j: Judge, *cases: Case) -> None:
    check_cases(j, [case for case in dict.fromkeys(cases) if fits(j, case)])


def _wide(j: Judge, width: int) -> int:
    """Return a head_dim if it is claimed, else the usual one."""
    return width if width in claimed_widths(j) else j.width


def _layouts(j: Judge) -> list[str]:
    """Return layouts of x to try; a library without strides has none that matter."""
    if not j.lib.has_strides:
        return ["transposed"]
    return [layout_name(name) for name, _ in j.lib.strided(j.x().array)]


def _cotangents(j: Judge) -> tuple[str, ...]:
    return COTANGENTS if j.lib.has_strides else ("contiguous", "broadcast")


@check("jit")
def jit(j: Judge) -> None:
    """The library's compiler compiles the call with traced x and positions, and the result is as exact."""
    x = j.x()
    compiled = j.lib.traced(lambda array, pos: j.target.call(array, pos))
    for start in (3, 70) if j.claims("offset_positions") else (0,):
        pos = j.row(start, 5)
        j.check(compiled(x.array, j.pos(pos)), x, pos)


@check("lazy", values=False)
def lazy(j: Judge) -> None:
    """A call computes nothing: the result is lazy, whatever the fields."""
    x = j.x()
    for spec in ({}, {"rotary_dim": 8}) if j.claims("rotary_dim") else ({},):
        y = j.call(x._replace(array=j.lib.poisoned(x.array)), j.lib.poisoned(j.pos(j.positions())), **spec)
        j.check_kind(y, x)
        assert j.lib.is_lazy(y), "the result is computed already"
