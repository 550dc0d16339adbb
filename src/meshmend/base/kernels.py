"""Hot loops, compiled by numba the first time one is called and kept in its on-disk cache after that.

numba is imported then and not before, so `import meshmend` stays light. A kernel is a plain function over numpy arrays
that calls nothing but kernels of its own module: numba's cache is renewed when that file changes, and not when another
does. `kernel.plain` is that function, for tests that compare the two.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, Generic, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


class Kernel(Generic[F]):
    """A function that compiles itself on its first call."""

    def __init__(self, plain: F) -> None:
        self.plain = plain
        self.__doc__ = plain.__doc__
        self._compiled: F | None = None

    def __call__(self, *arrays: Any) -> Any:
        return self.compiled(*arrays)

    @property
    def compiled(self) -> F:
        """The function as numba has it; kernels that it calls are given to it as numba has those."""
        if self._compiled is None:
            import numba

            known = self.plain.__globals__
            called = {name: known[name] for name in self.plain.__code__.co_names if name in known}
            known = known | {name: one.compiled for name, one in called.items() if isinstance(one, Kernel)}
            plain = FunctionType(self.plain.__code__, known, self.plain.__name__, None, self.plain.__closure__)
            plain.__module__, plain.__qualname__ = self.plain.__module__, self.plain.__qualname__
            self._compiled = cast(F, numba.njit(cache=True, nogil=True)(plain))
        return self._compiled


def kernel(plain: F) -> Kernel[F]:
    """Mark a function as a hot loop."""
    return Kernel(plain)
