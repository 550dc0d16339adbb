"""What a worker's courier does in every round of a sharded job, and when others die.

Each member has all weights, and holds some *slices* of what the optimizer remembers of them. No member has the whole
total, so the last word of a round is not a total that somebody has, but a meeting:

    Prepare    the worker computes its part; slices are copied to new holders meanwhile
    Scatter    every holder of a slice, owner and buddies alike, adds up that slice of all parts
    Meet       ── the round is decided: every slice's total is with all its holders ──
    Measure    where the optimizer needs norms of whole tensors: the holders' sums of squares go to all
    Update     every holder updates its slices: the same update of the same bits, once in a round
    Compare    the digests of all copies of a slice agree
    Give       its owner gives the new weights out, to all that do not hold the slice

Before the meeting nothing has changed, and a failure has the round done again. After it nothing is missing, and a
failure has it finished (`recovery.py`): so one version of each slice is enough. Two members are never more than one
round apart, and whoever has met is never more than half a round ahead.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshmend.job.protocol import NEVER, Collective, Failure, Round, Total, Verdict, Wait, check, divide, right_digest
from meshmend.job.sharding.operations import Meet, Prepare, Scatter, ShardedSteps
from meshmend.job.sharding.plan import RoundPlan, plan_round
from meshmend.job.sharding.records import BEFORE, ShardedState
from meshmend.job.sharding.recovery import ShardedGroup, Sharding, finish, recover


def run_sharded_member(
    state: ShardedState,
    sharding: Sharding,
    *,
    attempt: int = 0,
    world: int = 0,
    fresh: bool = True,
    repair: bool = True,
    hosts: Sequence[Sequence[int]] = (),
) -> ShardedSteps:
    """A member in one world of couriers, until the job is over: the counterpart of `run_member`."""
    everybody = frozenset(rank for ranks in hosts for rank in ranks)
    group = ShardedGroup(attempt=attempt, world=world, fresh=fresh, memberships=(everybody,), hosts=hosts)
    again, joined = False, False
    plan: RoundPlan | None = None
    while True:
        try:
            if not joined:
                if not repair:
                    state.assigned = (NEVER, ())
                yield from recover(state, group, sharding, again=again)
                joined, plan = True, None
            if not state.active:
                yield Wait()
                return
            if plan is None or not plan.steady:  # with 1,024 slices a plan takes milliseconds
                plan = plan_round(group.holdings, group.ranks, sharding.buddies, sharding.fills)
            if (yield from _decide(state, group, sharding, plan)) is Verdict.LEAVE:
                return
            yield from finish(state, plan.takers, sharding)
            group.holdings = plan.after
            state.held = plan.after.held_by(state.rank)
            state.assign(divide(sharding.lanes, len(group.active), group.active.index(group.position)))
        except Failure:
            if not repair:
                raise
            again, joined = True, False


def _decide(state: ShardedState, group: ShardedGroup, sharding: Sharding, plan: RoundPlan) -> ShardedSteps:
    """The first half of a round, up to the meeting. Returns the verdict on its total."""
    current = Round(state.done + 1, sharding.lanes, collective=Collective.REDUCE_SCATTER_ALL_GATHER)
    yield Prepare(current, state.lanes, plan.fills)
    state.held |= {fill.slice for fill in plan.fills_to(state.rank)}
    state.totals = BEFORE
    total: Total = yield Scatter(current, state.held, plan.takers.holders)
    origins = group.origins if state.done == group.round else {}
    verdict = check(total, state.rank, origins)
    if verdict is Verdict.EVICT:
        right = right_digest(total.digests, origins)
        state.wrong = frozenset(rank for rank, digest in total.digests.items() if digest != right)
        raise Failure  # all drop these totals, and repeat the round without those that are wrong
    if verdict is Verdict.COMMIT:
        state.totals = (current.number, group.world, group.shrink)
        yield Meet(current)
        state.met = state.totals
    return verdict
