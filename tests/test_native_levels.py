"""The environment chooses the level of instructions that the kernel runs at."""

import child
import pytest
from native_cases import LEVEL, LEVELS, kernel

from rope_array._backends import _native

pytestmark = pytest.mark.usefixtures("kernel_settings")

WHICH = """
    import hashlib
    import numpy as np, rope_array as ra
    x = np.linspace(-3, 3, 5 * 46, dtype=np.float32).reshape(5, 46)
    y = ra.apply(x, range(5))
    from rope_array._backends import _native
    print(_native.kernel and _native.kernel.level_name())
    print(ra.explain(x, range(5)).backend)
    print(hashlib.sha256(y.tobytes()).hexdigest())
"""


def test_the_level_of_the_environment():
    first = child.run(WHICH, **{LEVEL: ""}).split()
    assert first[:2] == [LEVELS[0], "native"]
    assert child.run(WHICH, **{LEVEL: LEVELS[-1]}).split() == [LEVELS[-1], *first[1:]]
    assert child.run(WHICH, **{LEVEL: "none"}).split()[:2] == ["None", "array-api"]


def test_names_of_levels(level):
    assert kernel.level_name() == level
    assert level in _native.description()
    with pytest.raises(ValueError, match="no such level"):
        kernel.use_level("none")
    assert kernel.level_name() == level
