"""Every kind of reduction, by the words that choose it and by its number in shared memory."""

from __future__ import annotations

from meshmend.errors import JobError
from meshmend.job.reduction.base import Reduction, WireFormat
from meshmend.job.reduction.bf16 import Bf16
from meshmend.job.reduction.exact import ExactSum
from meshmend.job.reduction.float32 import Float32

KINDS: tuple[type[Reduction], ...] = (Float32, Bf16, ExactSum)
"""A new kind is added here."""


def choose(reduction: str, wire: str) -> type[Reduction]:
    """Return the kind that `mm.Job(reduction=…, wire=…)` selects."""
    reductions, wires = (dict.fromkeys(words) for words in zip(*((k.reduction, k.wire) for k in KINDS), strict=True))
    if reduction not in reductions:
        raise JobError(f"unknown reduction={reduction!r}; choose from {', '.join(reductions)}")
    if wire not in wires:
        raise JobError(f"unknown wire={wire!r}; choose from {', '.join(wires)}")
    able = {kind.wire: kind for kind in KINDS if kind.reduction == reduction}
    if wire not in able:
        raise JobError(
            f"wire={wire!r} cannot be combined with reduction={reduction!r}, which needs wire={' or '.join(able)!r}"
        )
    return able[wire]


def kind_of(number: int) -> type[Reduction]:
    """The kind that a number in shared memory means."""
    for kind in KINDS:
        if kind.number == number:
            return kind
    raise JobError(f"unknown reduction number {number} in shared memory; use one version of meshmend for the whole run")


def wire_format(number: int, size: int, head: int) -> WireFormat:
    """The format of a message, from the three numbers that a worker puts into shared memory."""
    return WireFormat(kind_of(number), size, head)
