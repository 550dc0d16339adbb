"""Incidents are put together from what several processes wrote at their own pace."""

from __future__ import annotations

import pytest

from meshmend.report import Incident, incidents
from meshmend.telemetry.events import Began, Committed, Died, Ended, Event, Formed, Started, Struck
from tests.report.made import Attempt, repaired, run

END = 30


def commits(times: dict[float, int], ranks: tuple[int, ...] = (0, 1, 2), attempt: int = 0) -> list[Event]:
    by = [[rank, 1] for rank in ranks]
    return [Committed(time=time, rank=0, attempt=attempt, step=step, by=by, digest="") for time, step in times.items()]


def steady(begin: int, end: int, at: float) -> dict[float, int]:
    """A step every 0.1 s."""
    return {at + 0.1 * (step - begin): step for step in range(begin, end)}


BEFORE = [Formed(time=0, world=1, ranks=[0, 1, 2], why="start"), *commits(steady(0, END, 1.0))]
"""The last step, 29, is committed at 3.9."""


def only(*events: Event) -> Incident:
    (incident,) = incidents([*BEFORE, *events])
    return incident


def test_one_death() -> None:
    incident = only(
        Struck(time=4.0, rank=2, what="kill"),
        Died(time=4.005, rank=2, what="worker", how="SIGKILL"),
        repaired(0, 4.007, 4.05, [0, 1], revoke=0.001, shrink=0.02),
        repaired(1, 4.006, 4.06, [0, 1], revoke=0.002, shrink=0.01, roll_forward=0.003),
        *commits(steady(30, 50, 4.08), (0, 1)),
    )
    assert (incident.number, incident.begin, incident.tier, incident.step) == (1, 4.0, 1, 30)
    assert incident.what == ["worker 2 SIGKILL"]
    assert list(incident.times) == ["detect", "revoke", "shrink", "roll forward"]
    assert incident.times == pytest.approx({"detect": 0.006, "revoke": 0.002, "shrink": 0.02, "roll forward": 0.003})
    assert incident.total == pytest.approx(0.08)
    assert incident.ordinary == pytest.approx(0.1)


def test_a_step_that_was_under_way_is_not_the_end() -> None:
    incident = only(
        Struck(time=4.0, rank=2, what="kill"),
        *commits({4.001: 30, 4.002: 30}),
        Died(time=4.005, rank=2, what="worker", how="SIGKILL"),
        repaired(0, 4.01, 4.05, [0, 1]),
        *commits({4.07: 31, 4.2: 32}, (0, 1)),
    )
    assert incident.end == 4.07


def test_a_straggler_committing_an_old_step_is_not_the_end() -> None:
    incident = only(
        Struck(time=4.0, rank=2, what="kill"), repaired(0, 4.01, 4.05, [0, 1]), *commits({4.06: 29, 4.08: 30, 4.09: 30})
    )
    assert incident.end == 4.08


def test_a_courier_may_write_after_its_worker_has_committed() -> None:
    incident = only(
        Struck(time=4.0, rank=2, what="kill"),
        repaired(0, 4.01, 4.050, [0, 1], first_commit=0.010),
        repaired(1, 4.01, 4.053, [0, 1], first_commit=0.011),
        *commits({4.049: 30, 4.052: 30, 4.15: 31}, (0, 1)),
    )
    assert incident.end == 4.049


def test_killed_while_the_first_is_being_repaired() -> None:
    incident = only(
        Struck(time=4.0, rank=2, what="kill"),
        repaired(0, 4.01, 4.05, [0, 1], revoke=0.001, shrink=0.01),
        repaired(1, 4.01, 4.05, [0, 1], revoke=0.003, shrink=0.01),
        Struck(time=4.04, rank=1, what="kill"),
        *commits({4.06: 30}, (0, 1)),  # its part was in already
        repaired(0, 4.08, 4.12, [0], revoke=0.004, shrink=0.02),
        Died(time=4.085, rank=1, what="worker", how="SIGKILL"),
        *commits({4.13: 31, 4.23: 32}, (0,)),
    )
    assert incident.what == ["worker 2", "worker 1 SIGKILL"]
    assert incident.end == 4.13
    assert incident.times == pytest.approx({"detect": 0.01, "revoke": 0.005, "shrink": 0.03})


def test_deaths_far_apart_are_two_incidents() -> None:
    found = incidents(run([Attempt(0, 40, 4, {10: 1, 12: 3})]))
    assert [(incident.number, incident.step, incident.what) for incident in found] == [
        (1, 10, ["worker 1 SIGKILL"]),
        (2, 12, ["worker 3 SIGKILL"]),
    ]


def test_a_death_reported_late_is_no_new_incident() -> None:
    """The launcher waits to see whether a lost courier was alone; the other couriers do not wait for it."""
    late = [
        repaired(0, 4.01, 4.05, [0, 1]),
        *commits(steady(30, 50, 4.06), (0, 1)),
        Died(time=4.3, rank=2, what="courier", how="lost"),
        Died(time=4.31, rank=2, what="worker", how="SIGKILL"),
    ]
    incident = only(*late)
    assert (incident.begin, incident.end, incident.what) == (4.01, 4.06, ["courier 2 lost"])
    assert "detect" not in incident.times
    again = [Started(time=5.0, rank=2, process=1), Died(time=5.1, rank=2, what="worker", how="status 1")]
    assert [found.what for found in incidents([*BEFORE, *late, *again])] == [["courier 2 lost"], ["worker 2 status 1"]]


def test_a_hang_is_seen_only_later() -> None:
    incident = only(
        Struck(time=4.0, rank=2, what="hang"),
        *commits({4.05: 30}),
        Died(time=7.0, rank=2, what="worker", how="SIGKILL"),
        repaired(0, 7.01, 7.05, [0, 1]),
        *commits({7.06: 31}, (0, 1)),
    )
    assert (incident.what, incident.end) == (["worker 2 hang"], 7.06)
    assert incident.times["detect"] == pytest.approx(3.01)


def test_a_flip_is_found_after_any_number_of_steps() -> None:
    incident = only(
        Struck(time=4.0, rank=2, what="flip"),
        *commits(steady(30, 40, 4.1)),
        Died(time=6.0, rank=2, what="worker", how="evicted"),
        repaired(0, 6.01, 6.05, [0, 1]),
        *commits({6.06: 40}, (0, 1)),
    )
    assert (incident.what, incident.end) == (["worker 2 flip"], 6.06)


def test_an_eviction_is_reported_by_the_courier_and_by_the_launcher() -> None:
    events = [
        Struck(time=4.0, rank=2, what="flip"),
        Died(time=4.02, rank=2, what="worker", how="evicted"),
        *commits({4.05: 30, 4.15: 31, 4.25: 32}, (0, 1)),
        Died(time=4.18, rank=2, what="worker", how="SIGKILL"),
    ]
    assert only(*events).end == 4.05


def test_mpirun_is_a_new_world() -> None:
    incident = only(
        Died(time=4.0, rank=-1, what="mpirun", how="lost"),
        Formed(time=4.01, world=2, ranks=[0, 1, 2], why="mpirun was lost"),
        *commits({4.02: 30}),
        repaired(0, 4.01, 5.2, [0, 1, 2], re_form=0.9),
        *commits({5.3: 31}),
    )
    assert (incident.tier, incident.what, incident.end) == (2, ["mpirun lost"], 5.3)
    assert incident.times["re-form"] == 0.9


def test_mpirun_can_be_lost_again() -> None:
    def lost(at: float, step: int) -> list[Event]:
        return [
            Died(time=at, rank=-1, what="mpirun", how="lost"),
            Formed(time=at + 0.01, world=2, ranks=[0, 1, 2], why="mpirun was lost"),
            repaired(0, at + 0.01, at + 1.2, [0, 1, 2], re_form=0.9),
            *commits(steady(step, step + 5, at + 1.3)),
        ]

    found = incidents([*BEFORE, *lost(4.0, 30), *lost(6.0, 35)])
    assert [(incident.begin, incident.what, incident.tier) for incident in found] == [
        (4.0, ["mpirun lost"], 2),
        (6.0, ["mpirun lost"], 2),
    ]


def test_a_joining_worker_is_a_new_world_of_its_own() -> None:
    first, second = incidents(run([Attempt(0, 40, 3, {10: 1}, {20: 1})]))
    assert (first.tier, first.what) == (1, ["worker 1 SIGKILL"])
    assert (second.tier, second.what, second.step) == (2, ["worker 1 joins"], 20)
    assert second.total == pytest.approx(1.0)


def test_a_new_life() -> None:
    begin = Began(time=60.0, attempt=1, workers=3, spares=0, on_failure="replace")
    form = Formed(time=60.1, world=1, ranks=[0, 1, 2], why="start")
    after = commits(steady(25, 40, 61.0), attempt=1)
    deaths = [Died(time=4.0 + rank / 100, rank=rank, what="worker", how="SIGKILL") for rank in range(3)]
    incident = only(*deaths, Ended(time=5.0, status=1), begin, form, *after)
    assert (incident.tier, incident.begin, incident.end, incident.step) == (3, 4.0, 61.0, 30)
    assert incident.what == [f"worker {rank} SIGKILL" for rank in range(3)]
    assert only(Ended(time=5.0, status=1), begin, form, *after).what == ["resumed as attempt 1"]
    assert incidents([*BEFORE, Ended(time=5.0, status=0), begin, form, *after]) == []


def test_a_launcher_that_attaches_again_forms_a_new_world() -> None:
    incident = only(
        Began(time=9.0, attempt=0, workers=3, spares=0, on_failure="replace", attached=True),
        Formed(time=9.1, world=1, ranks=[0, 1, 2], why="the launcher came back"),
        *commits(steady(30, 40, 10.0)),
    )
    assert (incident.tier, incident.what) == (2, ["the launcher came back"])


def test_without_a_further_step_it_has_no_end() -> None:
    incident = only(Struck(time=4.0, rank=2, what="kill"), repaired(0, 4.01, 4.05, [0, 1]))
    assert (incident.end, incident.total) == (None, None)


def test_before_the_first_step() -> None:
    (incident,) = incidents([Struck(time=0.5, rank=2, what="kill"), *commits({1.0: 0, 1.1: 1, 1.2: 2})])
    assert (incident.step, incident.ordinary, incident.end) == (0, None, 1.0)


def test_a_quiet_run_has_none() -> None:
    assert incidents(run([Attempt(0, 20, 3)])) == []
    assert incidents([]) == []
