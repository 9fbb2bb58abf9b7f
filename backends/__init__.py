"""Fast paths of rope_array, one folder per library; installed as ``rope_array.backends``.

Nothing in here is imported before an array of its library is seen. Called, ``rope_array.backends()`` lists
the paths there are: the function and this package have the same name, so the package is what is called.
"""

import sys
from types import ModuleType
from typing import Any

if __name__ != "rope_array.backends":
    raise ImportError(
        f"{__name__!r} is the source folder of 'rope_array.backends'; imported under its own name, it would "
        "hold second copies of every module. Install the package (python -m pip install .) and import "
        "'rope_array.backends'."
    )


class _Package(ModuleType):
    def __call__(self) -> Any:
        """List the paths there are: see `rope_array._explain.backends`."""
        from rope_array._explain import backends

        return backends()


sys.modules[__name__].__class__ = _Package
