"""Call a function from several threads at once."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def in_threads(call: Callable[[int], Any], number: int = 8) -> list[Any]:
    """Call ``call(i)`` in threads that start together; return the results, or raise the first error."""
    barrier = threading.Barrier(number)

    def start(i: int) -> Any:
        barrier.wait()
        return call(i)

    with ThreadPoolExecutor(number) as pool:
        return list(pool.map(start, range(number)))
