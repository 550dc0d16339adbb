"""What every executor is: a schedule, and the proof of that very schedule.

An executor runs only what it has a proof of. It takes the proof that the caller has, or makes one; a schedule is proved
once however many executors run it, and steps cost nothing more.
"""

from __future__ import annotations

from meshmend.errors import VerifyError
from meshmend.mesh.collectives.schedule import CollectiveSchedule
from meshmend.mesh.proof import Proof, verify
from meshmend.mesh.schedule import Schedule
from meshmend.mesh.staged import StagedSchedule


class Executor:
    """Runs one schedule."""

    def __init__(self, schedule: Schedule, proof: Proof | None = None) -> None:
        """Without a proof the schedule is proved here, which raises a `VerifyError` if it is wrong."""
        self._schedule, self._proof = schedule, require_proof(schedule, proof)

    @property
    def schedule(self) -> Schedule:
        """What it runs."""
        return self._schedule

    @property
    def proof(self) -> Proof:
        """Why that is right."""
        return self._proof


def require_proof(schedule: Schedule | CollectiveSchedule | StagedSchedule, proof: Proof | None = None) -> Proof:
    """The proof given, if it is one of this schedule; a new one if none was given."""
    if proof is None:
        return verify(schedule)
    if not isinstance(proof, Proof) or not proof.covers(schedule):
        raise VerifyError(
            f"{proof!r} does not cover the schedule with digest {schedule.digest.hex()}: "
            "pass the result of verify(schedule) for this schedule, or leave proof out"
        )
    return proof
