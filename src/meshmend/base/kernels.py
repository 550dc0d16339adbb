"""Hot loops, compiled by numba the first time one is called and kept in its on-disk cache after that.

numba is imported then and not before, so `import meshmend` stays light. A kernel is one plain function over
numpy arrays that calls no other; `kernel.plain` is that function, for tests that compare the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


class Kernel(Generic[F]):
    """A function that compiles itself on its first call."""

    def __init__(self, plain: F) -> None:
        self.plain = plain
        self.__doc__ = plain.__doc__
        self._compiled: F | None = None

    def __call__(self, *arrays: Any) -> Any:
        if self._compiled is None:
            import numba

            self._compiled = cast(F, numba.njit(cache=True, nogil=True)(self.plain))
        return self._compiled(*arrays)


def kernel(plain: F) -> Kernel[F]:
    """Mark a function as a hot loop."""
    return Kernel(plain)
