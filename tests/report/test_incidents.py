"""Incidents are put together, by epoch, from what several processes wrote at their own pace and by their own clocks."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshmend.report import Incident, Level, State, fold, found, incidents
from meshmend.telemetry import (
    Began,
    Committed,
    Component,
    Died,
    Ended,
    Epoch,
    Event,
    Formed,
    How,
    Repaired,
    Skipped,
    Started,
    Struck,
    Why,
)
from tests.report.made import Attempt, killed, repaired, run, struck

END = 30
FIRST, SHRUNK, AGAIN = Epoch(0, 1), Epoch(0, 1, 1), Epoch(0, 1, 2)
SECOND, THIRD = Epoch(0, 2), Epoch(0, 3)
RESUMED = Epoch(1, 1)


def commits(times: dict[float, int], ranks: tuple[int, ...] = (0, 1, 2), epoch: Epoch = FIRST) -> list[Event]:
    by = [[rank, 1] for rank in ranks]
    return [Committed(time=time, epoch=epoch, rank=0, step=step, by=by, digest="") for time, step in times.items()]


def steady(begin: int, end: int, at: float) -> dict[float, int]:
    """A step every 0.1 s."""
    return {at + 0.1 * (step - begin): step for step in range(begin, end)}


def formed(time: float, epoch: Epoch, why: Why, ranks: tuple[int, ...] = (0, 1, 2)) -> Formed:
    return Formed(time=time, epoch=epoch, ranks=list(ranks), why=why)


def lost_mpirun(time: float, epoch: Epoch = FIRST) -> Died:
    return Died(time=time, epoch=epoch, what=Component.MPIRUN, how=How.LOST)


BEFORE = [formed(0, FIRST, Why.BEGIN), *commits(steady(0, END, 1.0))]
"""The last step, 29, is committed at 3.9."""


def only(*events: Event) -> Incident:
    (incident,) = incidents([*BEFORE, *events])
    return incident


def test_one_death() -> None:
    incident = only(
        struck(2, 4.0, FIRST),
        killed(2, 4.005, FIRST),
        repaired(0, 4.007, 4.05, [0, 1], FIRST, SHRUNK, revoke=0.001, shrink=0.02),
        repaired(1, 4.006, 4.06, [0, 1], FIRST, SHRUNK, revoke=0.002, shrink=0.01, roll_forward=0.003),
        *commits(steady(30, 50, 4.08), (0, 1), SHRUNK),
    )
    assert (incident.number, incident.begin, incident.level, incident.step) == (1, 4.0, Level.SHRINK, 30)
    assert (incident.was, incident.epoch, incident.joins) == (FIRST, SHRUNK, False)
    assert incident.what == ["worker 2 SIGKILL"]
    assert list(incident.times) == ["detect", "revoke", "shrink", "roll forward"]
    assert incident.times == pytest.approx({"detect": 0.006, "revoke": 0.002, "shrink": 0.02, "roll forward": 0.003})
    assert incident.total == pytest.approx(0.08)
    assert incident.ordinary == pytest.approx(0.1)


def test_a_step_that_was_under_way_is_not_the_end() -> None:
    incident = only(
        struck(2, 4.0, FIRST, step=30),
        *commits({4.001: 30, 4.002: 30}),
        killed(2, 4.005, FIRST, step=30),
        repaired(0, 4.01, 4.05, [0, 1], FIRST, SHRUNK),
        *commits({4.07: 31, 4.2: 32}, (0, 1), SHRUNK),
    )
    assert (incident.end, incident.step) == (4.07, 30)


def test_a_straggler_committing_an_old_step_is_not_the_end() -> None:
    """It gets the total of the last round only from a survivor, in the next epoch."""
    incident = only(
        struck(2, 4.0, FIRST),
        repaired(0, 4.01, 4.05, [0, 1], FIRST, SHRUNK),
        *commits({4.06: 29, 4.08: 30, 4.09: 30}, (0, 1), SHRUNK),
    )
    assert incident.end == 4.08


def test_a_courier_may_write_after_its_worker_has_committed() -> None:
    incident = only(
        struck(2, 4.0, FIRST),
        repaired(0, 4.01, 4.050, [0, 1], FIRST, SHRUNK, first_commit=0.010),
        repaired(1, 4.01, 4.053, [0, 1], FIRST, SHRUNK, first_commit=0.011),
        *commits({4.049: 30, 4.052: 30, 4.15: 31}, (0, 1), SHRUNK),
    )
    assert incident.end == 4.049


def test_killed_while_the_first_is_being_repaired() -> None:
    incident = only(
        struck(2, 4.0, FIRST, step=30),
        repaired(0, 4.01, 4.05, [0, 1], FIRST, SHRUNK, revoke=0.001, shrink=0.01),
        repaired(1, 4.01, 4.05, [0, 1], FIRST, SHRUNK, revoke=0.003, shrink=0.01),
        struck(1, 4.04, SHRUNK, step=30),
        *commits({4.06: 30}, (0, 1), SHRUNK),  # its part was in already
        repaired(0, 4.08, 4.12, [0], SHRUNK, AGAIN, revoke=0.004, shrink=0.02),
        killed(1, 4.085, SHRUNK, step=30),
        *commits({4.13: 31, 4.23: 32}, (0,), AGAIN),
    )
    assert incident.what == ["worker 2", "worker 1 SIGKILL"]
    assert (incident.end, incident.was, incident.epoch) == (4.13, FIRST, AGAIN)
    assert incident.times == pytest.approx({"detect": 0.01, "revoke": 0.005, "shrink": 0.03})


def test_killed_before_anything_was_committed_again() -> None:
    """No step need be known: no commit lies between the two changes of epoch."""
    incident = only(
        killed(2, 4.0, FIRST),
        killed(1, 4.04, SHRUNK),
        repaired(0, 4.01, 4.12, [0], FIRST, AGAIN),
        *commits({4.13: 30}, (0,), AGAIN),
    )
    assert (incident.what, incident.end) == (["worker 2 SIGKILL", "worker 1 SIGKILL"], 4.13)


def test_deaths_far_apart_are_two_incidents() -> None:
    found = incidents(run([Attempt(0, 40, 4, {10: 1, 12: 3})]))
    assert [(incident.number, incident.step, incident.what) for incident in found] == [
        (1, 10, ["worker 1 SIGKILL"]),
        (2, 12, ["worker 3 SIGKILL"]),
    ]


def test_deaths_in_neighbouring_steps_are_two_incidents() -> None:
    found = incidents(run([Attempt(0, 40, 4, {10: 1, 11: 3})]))
    assert [(incident.step, incident.epoch) for incident in found] == [(10, SHRUNK), (11, AGAIN)]


def test_a_death_reported_late_is_no_new_incident() -> None:
    """The launcher waits to see whether a lost courier was alone; the other couriers do not wait for it."""
    late = [
        repaired(0, 4.01, 4.05, [0, 1], FIRST, SHRUNK),
        *commits(steady(30, 50, 4.06), (0, 1), SHRUNK),
        Died(time=4.3, epoch=FIRST, what=Component.COURIER, how=How.LOST, rank=2, process=7),
        killed(2, 4.31, FIRST, process=7),
    ]
    incident = only(*late)
    assert (incident.begin, incident.end, incident.what) == (4.01, 4.06, ["courier 2 lost"])
    assert "detect" not in incident.times
    again = [
        Started(time=5.0, epoch=FIRST, rank=2, process=8),
        Died(
            time=5.1, epoch=FIRST, what=Component.WORKER, how=How.EXIT, value=1,
            rank=2, process=8, step=40, member=False,
        ),
    ]  # fmt: skip
    first, second = incidents([*BEFORE, *late, *again])
    assert (first.what, second.what) == (["courier 2 lost"], ["worker 2 exit status 1"])
    assert (second.step, second.end, second.level) == (40, pytest.approx(5.16), Level.SHRINK)


def test_a_death_in_a_world_that_has_shrunk_before_is_found_where_the_rank_was_last_active() -> None:
    """The launcher may not know how often the couriers of a world have shrunk."""
    events = [
        killed(2, 4.0, FIRST),
        repaired(0, 4.01, 4.05, [0, 1], FIRST, SHRUNK),
        *commits(steady(30, 40, 4.06), (0, 1), SHRUNK),
        killed(1, 5.0, FIRST),
        repaired(0, 5.01, 5.05, [0], SHRUNK, AGAIN),
        *commits(steady(40, 45, 5.06), (0,), AGAIN),
    ]
    first, second = incidents([*BEFORE, *events])
    assert (first.what, first.end) == (["worker 2 SIGKILL"], 4.06)
    assert (second.what, second.end, second.step) == (["worker 1 SIGKILL"], 5.06, 40)


def test_a_hang_is_seen_only_later() -> None:
    incident = only(
        struck(2, 4.0, FIRST, "hang", step=31),
        *commits({4.05: 30}),
        Died(time=7.0, epoch=FIRST, what=Component.WORKER, how=How.HANG, rank=2, step=31),
        repaired(0, 7.01, 7.05, [0, 1], FIRST, SHRUNK),
        *commits({7.06: 31}, (0, 1), SHRUNK),
    )
    assert (incident.what, incident.end) == (["worker 2 hang"], 7.06)
    assert incident.times["detect"] == pytest.approx(3.01)


def test_a_flip_is_found_after_any_number_of_steps() -> None:
    incident = only(
        struck(2, 4.0, FIRST, "flip", step=30),
        *commits(steady(30, 40, 4.1)),
        Died(time=6.0, epoch=FIRST, what=Component.WORKER, how=How.EVICTED, rank=2, step=40),
        repaired(0, 6.01, 6.05, [0, 1], FIRST, SHRUNK),
        *commits({6.06: 40}, (0, 1), SHRUNK),
    )
    assert (incident.what, incident.step, incident.end) == (["worker 2 flip"], 30, 6.06)


def test_what_fails_before_a_flip_is_found_is_another_incident() -> None:
    first, second = incidents(
        [
            *BEFORE,
            struck(2, 4.0, FIRST, "flip", step=30),
            struck(1, 4.5, FIRST, step=31),
            *commits({4.1: 30}),
            repaired(0, 4.51, 4.55, [0, 2], FIRST, SHRUNK),
            *commits(steady(31, 35, 4.6), (0, 2), SHRUNK),
            Died(time=6.0, epoch=SHRUNK, what=Component.WORKER, how=How.EVICTED, rank=2, step=35),
            *commits({6.06: 35}, (0,), AGAIN),
        ]
    )
    assert (first.what, first.end, second.what, second.end) == (["worker 1"], 4.6, ["worker 2 flip"], 6.06)


def test_an_eviction_is_reported_by_the_courier_and_by_the_launcher() -> None:
    events = [
        struck(2, 4.0, FIRST, "flip"),
        Died(time=4.02, epoch=FIRST, what=Component.WORKER, how=How.EVICTED, rank=2),
        *commits({4.05: 30, 4.15: 31, 4.25: 32}, (0, 1), SHRUNK),
        killed(2, 4.18, FIRST),
    ]
    assert only(*events).end == 4.05
    assert only(*events[1:]).what == ["worker 2 evicted"]


def test_mpirun_is_a_new_world() -> None:
    incident = only(
        lost_mpirun(4.0),
        formed(4.01, SECOND, Why.MPIRUN_LOST),
        *commits({4.02: 30}),
        repaired(0, 4.01, 5.2, [0, 1, 2], FIRST, SECOND, re_form=0.9),
        *commits({5.3: 31}, epoch=SECOND),
    )
    assert (incident.level, incident.what, incident.end) == (Level.NEW_WORLD, ["mpirun lost"], 5.3)
    assert incident.times["re-form"] == 0.9


def test_mpirun_can_be_lost_again() -> None:
    def lost(at: float, step: int, was: Epoch, epoch: Epoch) -> list[Event]:
        return [
            lost_mpirun(at, was),
            formed(at + 0.01, epoch, Why.MPIRUN_LOST),
            repaired(0, at + 0.01, at + 1.2, [0, 1, 2], was, epoch, re_form=0.9),
            *commits(steady(step, step + 5, at + 1.3), epoch=epoch),
        ]

    found = incidents([*BEFORE, *lost(4.0, 30, FIRST, SECOND), *lost(6.0, 35, SECOND, THIRD)])
    assert [(incident.begin, incident.what, incident.level) for incident in found] == [
        (4.0, ["mpirun lost"], Level.NEW_WORLD),
        (6.0, ["mpirun lost"], Level.NEW_WORLD),
    ]


def test_mpirun_is_not_blamed_for_a_shrink_before() -> None:
    first, second = incidents(
        [
            *BEFORE,
            killed(2, 4.0, FIRST),
            *commits(steady(30, 40, 4.06), (0, 1), SHRUNK),
            lost_mpirun(5.1),
            formed(5.2, SECOND, Why.MPIRUN_LOST, (0, 1)),
            *commits({6.0: 40}, (0, 1), SECOND),
        ]
    )
    assert (first.what, second.what) == (["worker 2 SIGKILL"], ["mpirun lost"])
    assert (second.was, second.step, second.end) == (SHRUNK, 40, 6.0)


def test_a_host_takes_its_ranks_along() -> None:
    """The couriers go on without it long before the launcher is sure that it is lost, and forms a new world."""
    first, second = incidents(
        [
            *BEFORE,
            repaired(0, 4.01, 4.05, [0], FIRST, SHRUNK),
            *commits(steady(30, 40, 4.06), (0,), SHRUNK),
            Died(time=9.0, epoch=FIRST, what=Component.HOST, how=How.LOST, host="b", ranks=[1, 2]),
            formed(9.1, SECOND, Why.HOST_LOST, (0,)),
            *commits({10.0: 40}, (0,), SECOND),
        ]
    )
    assert (first.what, first.level, first.end) == (["host b lost"], Level.SHRINK, 4.06)
    assert (second.what, second.level, second.end) == (["host lost"], Level.NEW_WORLD, 10.0)


def test_a_joining_worker_is_a_new_world_of_its_own() -> None:
    first, second = incidents(run([Attempt(0, 40, 3, {10: 1}, {20: 1})]))
    assert (first.level, first.what, first.joins) == (Level.SHRINK, ["worker 1 SIGKILL"], False)
    assert (second.level, second.what, second.step, second.joins) == (Level.NEW_WORLD, ["worker 1 joins"], 20, True)
    assert second.total == pytest.approx(1.0)


def test_a_new_attempt() -> None:
    begin = Began(time=60.0, epoch=Epoch(1), workers=3, spares=0, on_failure="replace")
    after = [begin, formed(60.1, RESUMED, Why.BEGIN), *commits(steady(25, 40, 61.0), epoch=RESUMED)]
    deaths = [killed(rank, 4.0 + rank / 100, FIRST) for rank in range(3)]
    failed, done = (Ended(time=5.0, epoch=FIRST, status=status) for status in (1, 0))
    incident = only(*deaths, failed, *after)
    assert (incident.level, incident.begin, incident.end, incident.step) == (Level.CHECKPOINT, 4.0, 61.0, 30)
    assert incident.what == [f"worker {rank} SIGKILL" for rank in range(3)]
    resumed = only(failed, *after)
    assert (resumed.what, resumed.begin, resumed.step) == (["resumed as attempt 1"], 60.0, 30)
    assert incidents([*BEFORE, done, *after]) == []


def test_a_restart_that_a_failure_leads_to_is_the_same_incident() -> None:
    """The survivors may commit a few steps before the policy `checkpoint` ends them: these steps are void."""
    events = [
        struck(2, 4.0, FIRST, step=30),
        repaired(0, 4.01, 4.05, [0, 1], FIRST, SHRUNK),
        *commits(steady(30, 32, 4.06), (0, 1), SHRUNK),
        formed(9.1, RESUMED, Why.BEGIN),
        *commits(steady(25, 40, 10.0), epoch=RESUMED),
    ]
    begin = Began(time=9.0, epoch=Epoch(1), workers=3, spares=0, on_failure="checkpoint", restarted=True)
    incident = only(*events, begin)
    assert (incident.what, incident.level, incident.begin, incident.end) == (["worker 2"], Level.CHECKPOINT, 4.0, 10.0)
    assert len(incidents([*BEFORE, *events, replace(begin, restarted=False)])) == 2, "somebody resumed it later"


def test_each_failure_that_leads_to_a_restart_is_an_incident_of_its_own() -> None:
    third = Epoch(2, 1)
    begin = [
        Began(time=time, epoch=Epoch(attempt), workers=3, spares=0, on_failure="checkpoint", restarted=True)
        for attempt, time in ((1, 9.0), (2, 19.0))
    ]
    first, second = incidents([
        *BEFORE, *begin,
        killed(2, 4.0, FIRST, step=30), formed(9.1, RESUMED, Why.BEGIN), *commits(steady(25, 40, 10.0), epoch=RESUMED),
        killed(1, 12.0, RESUMED, step=40), formed(19.1, third, Why.BEGIN), *commits(steady(35, 50, 20.0), epoch=third),
    ])  # fmt: skip
    assert (first.level, first.begin, first.end) == (Level.CHECKPOINT, 4.0, 10.0)
    assert (second.level, second.begin, second.end) == (Level.CHECKPOINT, 12.0, 20.0)


def test_what_dies_before_the_first_world_belongs_to_the_next_attempt() -> None:
    deaths = [
        Died(time=1.0, epoch=Epoch(0), what=Component.WORKER, how=How.EXIT, value=1, rank=rank, process=9, member=False)
        for rank in range(2)
    ]  # fmt: skip
    begin = [
        Began(time=time, epoch=Epoch(attempt), workers=2, spares=0, on_failure="replace")
        for attempt, time in enumerate((0.0, 9.0))
    ]
    again = [formed(9.5, RESUMED, Why.BEGIN), *commits({10.0: 0}, epoch=RESUMED)]
    (incident,) = incidents([*deaths, *begin, *again])
    assert (len(incident.what), incident.level, incident.step) == (2, Level.CHECKPOINT, 0)
    assert (incident.begin, incident.end) == (1.0, 10.0)
    (alone,) = incidents([*deaths, begin[0]])
    assert (alone.end, alone.begin) == (None, 1.0)


def test_a_launcher_that_attaches_again_forms_a_new_world() -> None:
    incident = only(
        Began(time=9.0, epoch=Epoch(0), workers=3, spares=0, on_failure="replace", attached=True),
        formed(9.1, SECOND, Why.ATTACHED),
        *commits(steady(30, 40, 10.0), epoch=SECOND),
    )
    assert (incident.level, incident.what, incident.step) == (Level.NEW_WORLD, ["launcher came back"], 30)


def test_without_a_further_step_it_has_no_end() -> None:
    incident = only(struck(2, 4.0, FIRST), repaired(0, 4.01, 4.05, [0, 1], FIRST, SHRUNK))
    assert (incident.end, incident.total) == (None, None)
    incident = only(struck(2, 4.0, FIRST, "hang", step=30))
    assert (incident.end, incident.step, incident.epoch) == (None, 30, FIRST)


def test_before_the_first_step() -> None:
    (incident,) = incidents([struck(2, 0.5, FIRST), *commits({1.0: 0, 1.1: 1, 1.2: 2}, (0, 1), SHRUNK)])
    assert (incident.step, incident.ordinary, incident.end) == (0, None, 1.0)


def test_a_quiet_run_has_none() -> None:
    assert incidents(run([Attempt(0, 20, 3)])) == []
    assert incidents([]) == []


FATES = st.dictionaries(st.integers(0, 25), st.integers(0, 4), max_size=6)


@st.composite
def disturbed(draw: st.DrawFn) -> list[Event]:
    """A run of one or two attempts with deaths and joins, some of them while others are being repaired."""
    attempts = [Attempt(0, 26, draw(st.integers(2, 5)), draw(FATES), draw(FATES))]
    if draw(st.booleans()):
        attempts.append(Attempt(draw(st.integers(0, 26)), 40, draw(st.integers(2, 5))))
    events = run(attempts)
    if draw(st.booleans()):
        events = [event for event in events if not isinstance(event, Struck)]
    if draw(st.booleans()):  # nobody commits in some epochs: the next change belongs to the same incident
        mute = draw(st.sampled_from(sorted({event.epoch for event in events})))
        events = [e for e in events if not (isinstance(e, Committed | Skipped) and e.epoch == mute)]
    return events


def writer(event: Event) -> str:
    """Who writes an event, as in a real run."""
    match event:
        case Struck():
            return "chaos"
        case Repaired():
            return f"courier-{event.rank}"
        case Committed() | Skipped():
            return f"worker-{event.rank}"
        case _:
            return "launcher"


@given(disturbed(), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_the_order_in_which_events_come_does_not_matter(events: list[Event], dice: random.Random) -> None:
    expected = incidents(events)
    dice.shuffle(events)
    assert incidents(events) == expected


def together(incident: Incident) -> tuple[object, ...]:
    """Which events make an incident, without its times."""
    what = sorted(incident.what)
    return incident.number, what, incident.level, incident.step, incident.was, incident.epoch, sorted(incident.times)


@given(disturbed(), st.dictionaries(st.sampled_from(["chaos", "launcher", *map(str, range(5))]), st.floats(-9, 9)))
@settings(max_examples=150, deadline=None)
def test_clocks_do_not_decide_what_belongs_together(events: list[Event], wrong: dict[str, float]) -> None:
    """Each host's couriers and workers have one clock, chaos and the launcher have theirs."""

    def shifted(event: Event) -> Event:
        by = wrong.get(writer(event).rpartition("-")[2], 0.0)
        if isinstance(event, Repaired):
            return replace(event, time=event.time + by, noticed=event.noticed + by)
        return replace(event, time=event.time + by)

    def grouped(events: list[Event]) -> list[tuple[object, ...]]:
        return [together(replace(one, times={**one.times, "detect": 0.0})) for one in incidents(events)]

    assert grouped([shifted(event) for event in events]) == grouped(events)


def test_the_fold_can_follow_a_run() -> None:
    """What is known of an incident only grows: at its begin, it has no end yet."""
    events = run([Attempt(0, 20, 4, {10: 1})])
    state, seen = State(), list[tuple[int, bool]]()
    for event in events:
        state = fold(state, event)
        so_far = found(state)
        seen.append((len(so_far), bool(so_far) and so_far[0].end is not None))
    assert sorted(seen) == seen and {(0, False), (1, False), (1, True)} == {*seen}
    assert found(reduce(fold, events, State())) == found(state)


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (Died(epoch=FIRST, what=Component.WORKER, how=How.COURIER_LOST, rank=2), "worker 2 lost its courier"),
        (Died(epoch=FIRST, what=Component.WORKER, how=How.SIGNAL, value=11, rank=2), "worker 2 SIGSEGV"),
        (Died(epoch=FIRST, what=Component.MPIRUN, how=How.LATE), "mpirun late"),
        (Died(epoch=FIRST, what=Component.HOST, how=How.LOST, host="node7", ranks=[1]), "host node7 lost"),
        (Struck(epoch=FIRST, what=Component.MPIRUN, fault="mpirun"), "mpirun"),
        (Struck(epoch=FIRST, what=Component.COURIER, fault="courier", rank=1), "courier 1"),
        (Struck(epoch=FIRST, what=Component.WORKER, fault="flip", rank=1), "worker 1 flip"),
        (Struck(epoch=FIRST, what=Component.LAUNCHER, fault="launcher"), "launcher"),
        (Struck(epoch=FIRST, what=Component.HOST, fault="host", rank=3), "host of worker 3"),
    ],
)
def test_causes_in_words(event: Event, words: str) -> None:
    assert only(event).what == [words]


def test_a_worker_that_dies_before_it_has_the_state_is_not_in_step_0() -> None:
    incident = only(
        formed(4.0, SECOND, Why.JOIN),
        Died(time=4.1, epoch=SECOND, what=Component.WORKER, how=How.SIGNAL, value=9, rank=2, process=7, step=0),
        repaired(0, 4.11, 4.2, [0, 1], SECOND, Epoch(0, 2, 1)),
        *commits(steady(END, END + 5, 4.3), (0, 1), Epoch(0, 2, 1)),
    )
    assert incident.step == END
