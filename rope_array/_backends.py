"""The backends, when Python imports a checkout's sources: the folder ``backends`` next to the package.

Wheels leave this module out, as they have the folder as ``rope_array/_backends``.
"""

from os.path import dirname, join

_PACKAGE = dirname(__file__)
_FOLDER = join(dirname(_PACKAGE), "backends")

try:
    _text = __loader__.get_data(join(_FOLDER, "__init__.py"))  # from a zip file too
except OSError:
    _text = b""
if b"rope_array._backends" not in _text:  # another project may have a folder of this name
    raise ImportError(
        f"the backends of rope_array are missing: {_PACKAGE} was copied without the folder 'backends' that a "
        f"checkout has next to it. Remove {_PACKAGE}, and install a checkout: python -m pip install FOLDER."
    )

__path__ = [_FOLDER]
