"""A proof: the promise that one plan or one schedule sums every chip's part exactly once.

    proof = mm.verify(schedule)          # or a VerifyError with the counterexample
    proof.covers(schedule)               # True for this schedule, or an equal one, and for no other

A proof is bound to what was proved by a digest of its mesh and its arrays. Only `verify` makes one; executors take it,
and prove the schedule themselves where they get none. Proofs are remembered by digest, so that a schedule is proved
once however often it is run.

Where one process plans for many, it proves the schedule and sends the digest along with it. Each receiver computes the
digest of what it got (`Proof.from_peer`), which costs a hash and no compiler, and refuses to run anything else.
"""

from __future__ import annotations

from typing import Any, NoReturn
from weakref import WeakSet

from meshmend.errors import VerifyError
from meshmend.mesh.collectives.plan import CollectivePlan
from meshmend.mesh.collectives.schedule import CollectiveSchedule
from meshmend.mesh.planners.plan import Plan
from meshmend.mesh.schedule.schedule import Schedule
from meshmend.mesh.staged.plan import StagedPlan
from meshmend.mesh.staged.schedule import StagedSchedule

Provable = Plan | Schedule | CollectivePlan | CollectiveSchedule | StagedPlan | StagedSchedule
KINDS: dict[type, str] = {
    Plan: "plan",
    Schedule: "schedule",
    CollectivePlan: "collective plan",
    CollectiveSchedule: "collective schedule",
    StagedPlan: "staged plan",
    StagedSchedule: "staged schedule",
}
"""What can be proved, and what a proof calls it."""


class Proof:
    """What `verify` returns. It cannot be constructed, copied or changed by anyone else."""

    __slots__ = ("__weakref__", "attested", "digest", "kind")

    kind: str
    """What was proved: a `plan`, a `schedule`, or those of another collective."""
    digest: bytes
    """The digest of what was proved."""
    attested: bool
    """Whether another process proved it, and this one only compared digests."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise TypeError("a Proof cannot be constructed: it is what meshmend.verify(plan or schedule) returns")

    def __setattr__(self, name: str, _: Any) -> NoReturn:
        raise AttributeError(f"a Proof cannot be changed: {name} is fixed")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a Proof cannot be changed: {name} is fixed")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Proof cannot be copied: send its digest, and receive it with Proof.from_peer")

    def __repr__(self) -> str:
        return f"<{'attested ' * self.attested}proof of {self.kind} {self.digest.hex()}>"

    def covers(self, thing: Provable) -> bool:
        """Whether this is a proof of that very plan or schedule."""
        return self in _MADE and self.kind == kind_of(thing) and self.digest == thing.digest

    @classmethod
    def from_peer(cls, digest: bytes, schedule: Schedule) -> Proof:
        """The proof that the sender of a schedule made, given the digest that came along.

        A `VerifyError` if the schedule is not the one that the sender proved.
        """
        if schedule.digest != digest:
            raise VerifyError(
                f"a schedule with digest {schedule.digest.hex()} arrived, but its sender proved {digest.hex()}: "
                "it was changed in transit and will not be run"
            )
        return make_proof(schedule, attested=True)


_MADE: WeakSet[Proof] = WeakSet()
"""Every proof there is: what is not in here is a forgery."""


def kind_of(thing: Provable) -> str:
    """What a proof calls it."""
    return next(name for kind, name in KINDS.items() if isinstance(thing, kind))


def make_proof(thing: Provable, *, attested: bool = False) -> Proof:
    """For `verify` and `Proof.from_peer` alone."""
    proof = object.__new__(Proof)
    for name, value in {"kind": kind_of(thing), "digest": thing.digest, "attested": attested}.items():
        object.__setattr__(proof, name, value)
    _MADE.add(proof)
    return proof
