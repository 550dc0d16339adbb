"""Failures of memory: a bit of a worker's state changes, as cosmic rays and bad chips do it."""

from __future__ import annotations

from meshmend.job.faults.base import FaultKind, Point, Target, register
from meshmend.job.shm.inspect import request_flip


def _flip(target: Target) -> None:
    request_flip(target.run, target.rank)


FLIP = register(
    FaultKind(
        "flip",
        "a bit of the worker's state changes",
        (Point.COMMIT,),
        outside=_flip,
        members=3,  # of two states that differ, nobody could say which one is right
        settles=True,
    )
)
