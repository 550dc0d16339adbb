"""The states of a rank: the table of transitions, and what agents see put into it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshmend.run.supervisor.observations import RankSeen
from meshmend.run.supervisor.ranks import (
    ALIVE,
    GONE,
    TRANSITIONS,
    IllegalTransition,
    Rank,
    RankState,
    Sign,
    sign_of,
    transition,
)

PAIRS = [(state, sign) for state in RankState for sign in Sign]
SEEN = (Sign.LOADS, Sign.OPENED, Sign.STANDS_BY, Sign.TAKES_PART, Sign.EXITS)
FURTHER = {state: place for place, state in enumerate(ALIVE)}
observed = st.builds(
    RankSeen,
    rank=st.just(0),
    process=st.integers(1, 3),
    status=st.sampled_from([None, None, None, 0, 1, -9]),
    ready=st.booleans(),
    active=st.booleans(),
    standby=st.integers(0, 2),
    exiting=st.booleans(),
    step=st.integers(0, 9),
)


@pytest.mark.parametrize(("state", "sign"), PAIRS, ids=lambda value: value.name)
def test_a_pair_is_in_the_table_or_is_an_error(state: RankState, sign: Sign) -> None:
    if (state, sign) in TRANSITIONS:
        assert transition(state, sign) is TRANSITIONS[state, sign]
    else:
        with pytest.raises(IllegalTransition) as refused:
            transition(state, sign)
        assert state.name in str(refused.value) and sign.name in str(refused.value)


def test_every_state_is_alive_or_gone_and_can_be_reached_and_left() -> None:
    assert {*ALIVE} | {*GONE} == {*RankState} and not {*ALIVE} & {*GONE}
    moves = {(state, into) for (state, _), into in TRANSITIONS.items() if state is not into}
    assert {state for state, _ in moves} == {*RankState} == {into for _, into in moves}


@pytest.mark.parametrize(
    ("state", "sign"),
    [
        (RankState.READY, Sign.LOADS),  # a worker never closes its job again
        (RankState.ACTIVE, Sign.OPENED),  # and never gives the state back
        (RankState.ACTIVE, Sign.STANDS_BY),
        (RankState.STARTING, Sign.START),  # no rank lives twice
        (RankState.ACTIVE, Sign.START),
        (RankState.EXITING, Sign.START),
        (RankState.DEAD, Sign.KILL),
        (RankState.ACTIVE, Sign.GIVE_UP),
        (RankState.ACTIVE, Sign.POSTPONE),
    ],
    ids=lambda value: value.name,
)
def test_what_cannot_be(state: RankState, sign: Sign) -> None:
    with pytest.raises(IllegalTransition):
        transition(state, sign)


@given(st.lists(st.sampled_from(Sign)))
def test_only_a_start_revives_and_a_worker_only_gets_further(signs: list[Sign]) -> None:
    state = RankState.DEAD
    for sign in signs:
        if (state, sign) not in TRANSITIONS:
            continue
        before, state = state, transition(state, sign)
        if before in GONE and state in ALIVE:
            assert sign is Sign.START
        if before in ALIVE and state in GONE:
            assert sign in (Sign.ENDED, Sign.WRITE_OFF) or (before, sign) == (RankState.STARTING, Sign.MISS)
        again = (before, state) == (RankState.STANDBY, RankState.READY) or sign is Sign.NEXT_JOB
        if before in ALIVE and state in ALIVE and not again:
            assert FURTHER[state] >= FURTHER[before]
        if before is RankState.EXITING and state in ALIVE:
            assert state is RankState.EXITING
        if before is RankState.GIVEN_UP:
            assert state is RankState.GIVEN_UP or sign in (Sign.START, Sign.WRITE_OFF)


@given(st.sampled_from(RankState), st.sampled_from((*SEEN, Sign.ENDED)))
def test_what_is_left_of_an_old_worker_never_changes_a_rank_without_one(state: RankState, sign: Sign) -> None:
    if state in GONE:
        assert transition(state, sign) is state


def ordered(looks: list[RankSeen]) -> list[RankSeen]:
    """The same looks with what a worker has reached never taken back, as agents see it."""
    ready = active = exiting = False
    found = []
    for look in looks:
        active = active or look.active
        ready = ready or look.ready or active
        exiting = exiting or look.exiting
        found.append(
            RankSeen(
                0, process=1, status=look.status, ready=ready, active=active, standby=look.standby, exiting=exiting,
                step=look.step,
            )
        )  # fmt: skip
        if look.status is not None:
            break
    return found


@given(st.lists(observed, min_size=1), st.integers(0, 2), st.data())
def test_no_sequence_that_an_agent_can_see_is_illegal(looks: list[RankSeen], world: int, data: st.DataObject) -> None:
    """With kills of ours and lost hosts in between; a death is reported exactly once."""
    rank, deaths, buried = Rank(0, "a"), 0, False
    rank.started()
    for look in ordered(looks):
        deaths += rank.see(look, world)
        what = data.draw(st.sampled_from(["", "", "", "kill", "bury"]))
        if what == "kill" and rank.alive:
            rank.apply(Sign.KILL)
        elif what == "bury":
            rank.apply(Sign.WRITE_OFF)
            buried = True
    assert deaths <= 1
    assert rank.alive == (not deaths and not buried)


@given(st.lists(observed))
def test_a_rank_without_a_worker_is_not_changed_by_what_is_seen(looks: list[RankSeen]) -> None:
    for state in GONE:
        rank = Rank(0, "a", state)
        assert not any(rank.see(look, 1) for look in looks)
        assert rank.state is state


@pytest.mark.parametrize(
    ("seen", "sign"),
    [
        (RankSeen(0, process=1), Sign.LOADS),
        (RankSeen(0, process=1, ready=True), Sign.OPENED),
        (RankSeen(0, process=1, ready=True, standby=1), Sign.OPENED),  # the courier of another world
        (RankSeen(0, process=1, ready=True, standby=2), Sign.STANDS_BY),
        (RankSeen(0, process=1, ready=True, active=True), Sign.TAKES_PART),
        (RankSeen(0, process=1, ready=True, active=True, exiting=True), Sign.EXITS),
        (RankSeen(0, process=1, ready=True, active=True, exiting=True, status=0), Sign.ENDED),
    ],
)
def test_what_an_observation_says(seen: RankSeen, sign: Sign) -> None:
    assert sign_of(seen, world=2) is sign


def test_a_worker_that_completed_no_step_is_told_from_one_that_did() -> None:
    rank = Rank(0, "a")
    rank.started()
    rank.see(RankSeen(0, process=1, ready=True, active=True, step=7), 1)
    assert not rank.completed_steps
    rank.see(RankSeen(0, process=1, ready=True, active=True, step=8), 1)
    assert rank.completed_steps


def test_a_state_that_was_taken_over_is_no_completed_step() -> None:
    """One that joins others counts as active a moment before it has their step."""
    rank = Rank(1, "a", joining=True)
    rank.started()
    for step, world, completed in ((0, 0, False), (556, 2, False), (557, 2, True)):
        rank.see(RankSeen(1, process=1, ready=True, active=True, step=step, summed_world=world), 2)
        assert rank.completed_steps is completed
