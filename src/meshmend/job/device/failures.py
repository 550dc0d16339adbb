"""Errors of a device under a living worker, as PyTorch and JAX raise them: the sentence that its worker ends with.

They are known by their class, or where a library has none, by the words of CUDA itself; neither library is loaded.
"""

from __future__ import annotations

import re

CLASSES = {("torch", "OutOfMemoryError"), ("torch", "AcceleratorError"), ("jax", "JaxRuntimeError"),
           ("jaxlib", "XlaRuntimeError")}  # fmt: skip
FULL = ("RESOURCE_EXHAUSTED", "out of memory", "CUDA_ERROR_OUT_OF_MEMORY")
BROKEN = ("CUDA error", "CUDA_ERROR_", "CUBLAS_STATUS_", "cuDNN error", "INTERNAL:", "DATA_LOSS:", "UNAVAILABLE:")
"""Describe such an error. JAX has one class for all errors, including the user's."""
SIZE = re.compile(r"(\d[\d.,]*) ?(bytes|[KMGT]i?B)\b")


def device_failure(error: BaseException, held: int) -> str | None:
    """A sentence, if a device has failed or has no more memory; `held` is what sums hold there, in bytes."""
    known = {(kind.__module__.split(".")[0], kind.__name__) for kind in type(error).__mro__} & CLASSES
    text = str(error)
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    if not known and not (isinstance(error, RuntimeError) and first.startswith(BROKEN)):
        return None
    if any(word in text for word in FULL):
        asked = SIZE.search(text)
        wanted = f"{asked[0]} were asked for" if asked else first
        ours = f", and meshmend itself holds {held / 1e6:,.0f} MB there for sums" if held else ""
        return (
            f"the device is out of memory: {wanted}{ours}; use more and smaller lanes, or fewer workers per device "
            "(JAX takes most of a device when it starts: XLA_PYTHON_CLIENT_PREALLOCATE=false)"
        )
    if any(word in text for word in BROKEN):
        return f"the device of this worker failed: {first}"
    return None
