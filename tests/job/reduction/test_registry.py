"""Kinds of reductions: found by words and by number, and a new one needs nothing but its class and its line."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import meshmend as mm
from meshmend.errors import JobError
from meshmend.job.reduction import registry
from meshmend.job.reduction.base import NonFinite, WireFormat
from meshmend.job.reduction.bf16 import Bf16
from meshmend.job.reduction.float32 import Float32
from meshmend.job.reduction.registry import KINDS, choose, kind_of, wire_format


def test_numbers_and_words_name_one_kind_each() -> None:
    assert len({kind.number for kind in KINDS}) == len({(kind.reduction, kind.wire) for kind in KINDS}) == len(KINDS)
    for kind in KINDS:
        assert kind.number > 0 and kind.nonfinite
        assert choose(kind.reduction, kind.wire) is kind_of(kind.number) is kind


def test_a_number_of_another_version_is_refused() -> None:
    with pytest.raises(JobError, match="number 99"):
        wire_format(99, 10, 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("members", [1, 2, 3, 5])
def test_slices_add_up_to_the_whole(kind: type[registry.Reduction], members: int) -> None:
    """However a message is cut, also within its head, the total has the same bits."""
    random = np.random.default_rng(members)
    wire = WireFormat(kind, 1000, 333 if kind is Bf16 else 0)
    parts = [random.integers(0, 100, 1000).astype(kind.dtype) for _ in range(members)]
    if wire.head:
        for part in parts:
            part[: wire.head].view(np.uint16)[:] = random.normal(size=666).astype(np.float32).view(np.uint32) >> 16
    whole, pieces = np.zeros((2, 1000), kind.dtype)
    wire.combine(parts, whole)
    cuts = [0, *sorted(random.integers(0, 1000, 6).tolist()), 1000]
    for begin, end in pairwise(cuts):
        wire.combine([part[begin:end] for part in parts], pieces[begin:end], begin)
    assert whole.tobytes() == pieces.tobytes()
    assert (whole[wire.head :] == np.sum([part[wire.head :] for part in parts], axis=0)).all()


class Parity(Float32):
    """A toy: whole numbers modulo 2, packed into the head as bits that add by exclusive or."""

    number = 77
    reduction = "parity"
    dtype = np.dtype(np.int32)
    nonfinite = (NonFinite.ERROR,)

    def __init__(self, layout: Any, lanes: int) -> None:
        super().__init__(layout, lanes)
        self.head = self.size

    @classmethod
    def combine_head(cls, parts: Sequence[Any], out: Any) -> None:
        np.bitwise_xor.reduce(parts, out=out)


def test_a_new_kind_is_a_class_and_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "KINDS", (*KINDS, Parity))
    with mm.Job(np.arange(8, dtype=np.int32), batch=8, lanes=4, reduction="parity") as job:
        job.share(np.zeros(1))
        assert job.sum(lambda lane: lane).sum() == 28
        assert job.training.config.nonfinite is NonFinite.ERROR
    wire = wire_format(Parity.number, 2, 2)
    out = np.zeros(2, np.int32)
    wire.combine([np.array([1, 0], np.int32), np.array([1, 1], np.int32)], out)
    assert out.tolist() == [0, 1]
    with pytest.raises(JobError, match="parity"):
        mm.Job(np.arange(8), batch=8, lanes=4, reduction="parity", nonfinite="skip")
