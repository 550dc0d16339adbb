"""What a worker's courier does in every round, and when others die.

In each round a member brings its *part*: the sum over the lanes it is responsible for, how often each lane is counted
in it, and a digest of the state it was computed with. All members receive the same *total*. What a total means to the
training (a step to commit, a step to repeat with a wider number format) the workers decide, and all decide the same,
because all hold the same total.

      ┌──────────────► Work ──► Reduce ──► check ──► keep the total ──┐
      │                  │ Failure │                                  │
      │                  ▼         ▼                                  │
      │      Revoke ─► Shrink ─► Gather records ─► roll forward ─► divide lanes
      └───────────────────────────────────────────────────────────────┘

`run_member` is a generator: it yields operations and is sent their results, or has `Failure` thrown into it where MPI
reports one. So the very same code runs under MPI and under a seeded simulator that kills at every point.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshmend.job.protocol.agreement import Verdict, check, divide
from meshmend.job.protocol.operations import Reduce, Steps, Wait, Work
from meshmend.job.protocol.records import Failure, MemberState, Total
from meshmend.job.protocol.recovery import Group, recover
from meshmend.job.protocol.rounds import NEVER, Round


def run_member(
    state: MemberState,
    lanes: int,
    wanted: int,
    *,
    attempt: int = 0,
    world: int = 0,
    fresh: bool = True,
    repair: bool = True,
    hosts: Sequence[Sequence[int]] = (),
) -> Steps:
    """A member in one world of couriers, until the job is over; `wanted` is how many members should be active.

    `fresh` says that the job may begin here: no member has had its state yet, so the first member's is as good as any.
    Without `repair` a world ends with its first failure, and in the next one every member computes the round again, as
    in Reinit (for comparison). `hosts` are the ranks of each host: a missing host may merely be cut off.
    """
    everybody = frozenset(rank for ranks in hosts for rank in ranks)
    group = Group(attempt=attempt, world=world, fresh=fresh, memberships=(everybody,), hosts=hosts)
    again, joined = False, False
    while True:
        try:
            if not joined:
                if not repair:
                    state.assigned = (NEVER, ())
                yield from recover(state, group, lanes, wanted, again=again)
                joined = True
            if not state.active:
                yield Wait()
                return
            current = Round(state.done + 1, lanes)
            yield Work(current, state.lanes)
            total: Total = yield Reduce(current)
            verdict = check(total, state.rank, group.origins if state.done == group.round else {})
            if verdict is Verdict.LEAVE:
                return
            if verdict is Verdict.EVICT:
                raise Failure  # all drop this total; the member with the wrong state ends, and the round is repeated
            state.complete(current.number, (group.world, group.shrink))
            state.assign(divide(lanes, len(group.active), group.active.index(group.position)))
            if group.midway:
                raise Failure  # nothing has failed, but others wait to join: this round may have ended the step
        except Failure:
            if not repair:
                raise
            again, joined = True, False
