"""Checked by mypy in the session `types`: an ignored error that is none is an error too."""

from typing import assert_type

import numpy as np
from numpy.typing import NDArray

import rope_array as ra

Floats = NDArray[np.float32]


def results_have_the_type_of_x(x: Floats, pos: NDArray[np.int64], rope: ra.RoPE) -> None:
    assert_type(ra.apply(x, pos, rope), Floats)
    assert_type(ra.apply((x, x), pos, base=500_000.0, pairing="half"), tuple[Floats, Floats])
    assert_type(rope.apply((x, x, x), pos), tuple[Floats, Floats, Floats])
    rotation = rope.rotation(pos, like=x)
    assert_type(rotation.apply(x), Floats)
    for table in rotation:
        assert_type(rope.rotation_from(table, table), ra.Rotation)


def misspelt_fields_are_errors(x: Floats) -> None:
    ra.apply(x, 3, pairng="half")  # type: ignore[call-arg]
    ra.apply(x, 3, pairing="neox")  # type: ignore[arg-type]
    ra.explain(x, 3, theta=1.0)  # type: ignore[call-arg]
    ra.RoPE(8, pairng="half")  # type: ignore[call-arg]
    ra.RoPE(8, 10000.0)  # type: ignore[call-arg]


def every_rule_and_module_is_known() -> None:
    ra.RoPE(8, scaling=ra.YaRN(4.0, 2048), axes=ra.Axes.chunked(2, 2))
    assert_type(ra.positions.__name__, str)
