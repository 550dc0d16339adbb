"""Which errors are a device's, and what the worker says when it ends with one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from meshmend.job.device.failures import device_failure
from tests.job.test_worker import Worked
from tests.job.test_worker import work as work

TORCH = """CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 3.1 GiB is
free."""
XLA = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 4294967296 bytes."


def made(module: str, name: str, text: str) -> BaseException:
    kind = type(name, (RuntimeError,), {"__module__": module})
    return kind(text)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (made("torch", "OutOfMemoryError", TORCH), ["20.00 GiB", "36 MB"]),
        (made("jaxlib._jax", "XlaRuntimeError", XLA), ["4294967296 bytes", "36 MB"]),
        (
            made("jax.errors", "JaxRuntimeError", "INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS: x"),
            ["CUDA_ERROR_ILLEGAL_ADDRESS"],
        ),
        (made("torch", "AcceleratorError", "CUDA error: unspecified launch failure"), ["unspecified launch failure"]),
        (RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel …"), ["illegal memory"]),
    ],
)
def test_an_error_of_a_device_is_told_in_a_sentence(error: BaseException, words: list[str]) -> None:
    said = device_failure(error, 36_000_000)
    assert said is not None and "\n" not in said and all(word in said for word in words)


@pytest.mark.parametrize(
    "error",
    [
        made("jax.errors", "JaxRuntimeError", "INVALID_ARGUMENT: shapes differ"),
        RuntimeError("I talk of a CUDA error"),
        ValueError("CUDA error: of the user's own"),
        MemoryError("out of memory"),
    ],
)
def test_other_errors_are_the_users(error: BaseException) -> None:
    assert device_failure(error, 0) is None


def test_the_worker_ends_with_it(work: Callable[[str], Worked], tmp_path: Path) -> None:
    del tmp_path
    error = work("class OutOfMemoryError(RuntimeError): __module__ = 'torch'\nraise OutOfMemoryError('out of memory')")
    found = error[0].files.read_error()
    assert found is not None and not found["mistake"] and found["error"] != "torch.OutOfMemoryError: out of memory"
    assert found["trace"].startswith("Traceback") and found["trace"].rstrip().endswith(found["error"])
