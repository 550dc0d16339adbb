"""Proof, independent of how a plan or a schedule was made."""

from __future__ import annotations

from collections import OrderedDict

from meshmend.mesh.collectives.plan import CollectivePlan
from meshmend.mesh.collectives.schedule import CollectiveSchedule
from meshmend.mesh.planners.plan import Plan
from meshmend.mesh.proof.collective import verify_collective_plan, verify_collective_schedule
from meshmend.mesh.proof.plan import verify_plan
from meshmend.mesh.proof.proof import KINDS, Provable, kind_of, make_proof
from meshmend.mesh.proof.proof import Proof as Proof
from meshmend.mesh.proof.schedule import verify_schedule
from meshmend.mesh.proof.staged import verify_staged_plan, verify_staged_schedule
from meshmend.mesh.schedule.schedule import Schedule
from meshmend.mesh.staged.plan import StagedPlan

REMEMBERED = 64
"""Proofs that are kept, the latest used ones."""
_KNOWN: OrderedDict[tuple[str, bytes], Proof] = OrderedDict()


def verify(thing: Provable) -> Proof:
    """The proof that a plan or schedule sums every chip's part exactly once, or a `VerifyError` with a counterexample.

    For other collectives, the proof that every chip gets what the collective says. What was proved before is not proved
    again: equal schedules have equal digests.
    """
    if not isinstance(thing, tuple(KINDS)):
        raise TypeError(f"verify takes a Plan or a Schedule, not {type(thing).__name__}")
    key = kind_of(thing), thing.digest
    if key not in _KNOWN:
        if isinstance(thing, Plan):
            verify_plan(thing)
        elif isinstance(thing, Schedule):
            verify_schedule(thing)
        elif isinstance(thing, CollectivePlan):
            verify_collective_plan(thing)
        elif isinstance(thing, CollectiveSchedule):
            verify_collective_schedule(thing)
        elif isinstance(thing, StagedPlan):
            verify_staged_plan(thing)
        else:
            verify_staged_schedule(thing)
        _KNOWN[key] = make_proof(thing)
        if len(_KNOWN) > REMEMBERED:
            _KNOWN.popitem(last=False)
    _KNOWN.move_to_end(key)
    return _KNOWN[key]
