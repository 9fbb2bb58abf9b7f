"""TensorFlow: the array-api backend with TensorFlow's functions under the standard's names."""

import math
from types import SimpleNamespace
from typing import Any

import tensorflow as tf

from rope_array._spec.plan import Constants
from rope_array.backend_tools import ArrayOps, ArrayTypeError, Library, rotate_by_array_api

name = "tensorflow"
is_array_api = True
rotate = rotate_by_array_api


class TensorFlowOps(ArrayOps):
    """TensorFlow's operations. An axis may have an unknown size, and there is no operator for shifts."""

    def reshape(self, array: Any, shape: Any) -> Any:
        sizes = tf.shape(array)  # an axis of unknown size keeps its place
        return tf.reshape(array, [sizes[i] if size is None else size for i, size in enumerate(shape)])

    def look_up(self, numbers: Constants, indices: Any, dtype: Any) -> Any:
        return tf.gather(self.constants(numbers, dtype), indices)

    def right_shift(self, array: Any, count: int) -> Any:
        return tf.bitwise.right_shift(array, tf.constant(count, array.dtype))

    def with_shape_of(self, y: Any, x: Any) -> Any:
        y = tf.reshape(y, tf.shape(x), name="rope_array_positions_have_to_line_up_with_x")  # in its error
        return tf.ensure_shape(y, x.shape)


class TensorFlow(Library):
    """TensorFlow: eager tensors, and the tensors of tf.function, whose sizes may be unknown."""

    operations = TensorFlowOps
    converter = "tensorflow.convert_to_tensor(pos)"
    keeps_float64 = True

    def has_int64(self, x: Any) -> bool:
        return True

    def is_array(self, value: Any) -> bool:
        return isinstance(value, (tf.Tensor, tf.Variable))

    def check_supported(self, value: Any) -> None:
        if isinstance(value, tf.Variable):
            raise ArrayTypeError(
                "a tf.Variable is no tensor; give its tensor: tf.convert_to_tensor(variable)."
            )
        if value.shape.rank is None:
            raise ArrayTypeError("a tensor has an unknown number of axes; tf.ensure_shape sets its shape.")


def _asarray(value: Any, dtype: Any = None, copy: bool | None = None) -> Any:
    return tf.identity(value) if copy else tf.convert_to_tensor(value, dtype)


_NAMES = (
    "broadcast_to",
    "cos",
    "exp",
    "eye",
    "floor",
    "reshape",
    "round",
    "sin",
    "sqrt",
    "stack",
    "where",
    "zeros_like",
)
_DTYPES = ("int32", "int64", "uint32", "float32", "float64", "complex64", "complex128")
_XP = SimpleNamespace(
    **{name: getattr(tf, name) for name in (*_NAMES, *_DTYPES)},
    arange=tf.range,
    asarray=_asarray,
    astype=lambda array, dtype, copy=True: tf.cast(array, dtype),
    concat=lambda arrays, axis=0: tf.concat(arrays, axis),
    cumulative_sum=lambda array, axis, dtype: tf.cumsum(tf.cast(array, dtype), axis),
    log2=lambda array: tf.math.log(array) / math.log(2),
    full=lambda shape, value, dtype: tf.fill(shape, tf.constant(value, dtype)),
    matrix_transpose=tf.linalg.matrix_transpose,
    permute_dims=tf.transpose,
    searchsorted=tf.searchsorted,
    take=tf.gather,
)
LIBRARY = TensorFlow("tensorflow", _XP, takes_numpy=True, implicit_device=True)


def library(x: Any) -> Library:
    """Return TensorFlow."""
    return LIBRARY
