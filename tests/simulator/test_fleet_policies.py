"""What each policy makes of failures set by hand, to the minute; and the account of chip-hours."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from meshmend import Mesh
from meshmend.base.terminal import SILENT
from meshmend.mesh.hole import count, piece
from meshmend.simulator.fleet.chip_hours import Account
from meshmend.simulator.fleet.history import History, history, sample
from meshmend.simulator.fleet.policies import POLICIES, Costs, Site, follow
from meshmend.simulator.fleet.speeds import Speeds, Step

MESH = Mesh.parse("16x8")
CHIPS = 128
COSTS = Costs(interval=10.0, checkpoint=0.5, detect=0.25, restart=1.0, reroute=0.125)
TWO = [(5.0, "host", 0, 20.0), (15.0, "host", 9, 4.0)]
"""Host 0 (rows 0 to 3, columns 0 and 1) is dead from hour 5 to 25, host 9 (rows 8 to 11) from 15 to 19."""


def run(policy: str, failures: list[tuple[float, str, int, float]], hours: float = 60.0, **options: float) -> Account:
    costs = Costs(**{**vars(COSTS), **{name: value for name, value in options.items() if name != "spares"}})
    past = history(MESH, hours, failures)
    speeds = Speeds(MESH, Step(lanes=0))
    speeds.solve(past.spans(), SILENT, plans=0)
    account = follow(policy, Site(MESH, costs, int(options.get("spares", 1)), speeds), past, trace=True)
    conserves(account, hours)
    return account


def conserves(account: Account, hours: float) -> None:
    assert account.now == hours
    assert min(account.lost.values()) >= 0
    assert account.useful >= 0
    assert account.useful + math.fsum(account.lost.values()) == pytest.approx(hours * CHIPS, rel=1e-12)


def in_hours(account: Account) -> dict[str, float]:
    lost = {cause.name.lower(): value / CHIPS for cause, value in account.lost.items() if value}
    return {"useful": account.useful / CHIPS, **lost}


def test_history_says_what_is_dead_when() -> None:
    past = history(MESH, 20.0, [*TWO, (16.0, "host", 0, 1.0)])
    a, b = piece(MESH, "host", 0), piece(MESH, "host", 9)
    assert [(c.time, c.failed, c.hole) for c in past.changes] == [
        (5.0, True, (a,)),
        (15.0, True, (a, b)),
        (19.0, False, (a,)),
    ]  # the third failure is of a host that is dead already, and the repair at 25 lies beyond the end
    assert past.failures == 2
    assert past.spans() == [((a,), 10.0), ((a, b), 4.0), ((a,), 1.0)]


def test_wait() -> None:
    # 5 h of work lost; stands to hour 25; restarts to 26; then 34 h: 3 checkpoints of half an hour and the rest.
    assert in_hours(run("wait", TWO)) == pytest.approx(
        {"useful": 32.5, "rollback": 5.0, "detect": 0.5, "stopped": 19.5, "restart": 1.0, "checkpoint": 1.5}
    )


def test_spare() -> None:
    # Both failures roll back; with one spare the second waits for a repair (hour 19), with two it does not.
    one, two = in_hours(run("spare", TWO)), in_hours(run("spare", TWO, spares=2))
    # 5 h lost; works 6.25 to 15, 8.75 h lost; stands to 19, restarts to 20; then 40 h with 3 checkpoints.
    assert one == pytest.approx(
        {"useful": 38.5, "rollback": 13.75, "detect": 0.5, "stopped": 3.75, "restart": 2.0, "checkpoint": 1.5}
    )
    assert two["rollback"] == pytest.approx(13.75) and "stopped" not in two
    assert two["useful"] == pytest.approx(60 - 16.25 - 4 * 0.5)


def test_restart_on_a_smaller_mesh() -> None:
    speeds = Speeds(MESH, Step(lanes=0))
    small, smaller = speeds.of_rectangle(16, 6), speeds.of_rectangle(8, 8)
    assert small > smaller
    # Host 0 leaves 16x6; host 9 (columns 2 and 3) lies in it and leaves 16x4, 12x6 less its rows, or 8x8 … at hour 19
    # a checkpoint and a restart lead back to 16x6, at hour 25 to the whole mesh.
    account = run("restart", TWO)
    got = in_hours(account)
    assert got["rollback"] == pytest.approx(5 + 8.75 * small)
    assert got["detect"] == pytest.approx(0.5)
    assert got["restart"] == pytest.approx(4.0)
    speed_at = {stretch.begin: stretch.speed for stretch in account.stretches or ()}
    assert speed_at[6.25] == pytest.approx(small)
    assert speed_at[20.5] == pytest.approx(small)  # written for half an hour, then restarted
    assert speed_at[26.5] == 1.0
    # Outside the rectangle nothing is felt.
    both = [(5.0, "host", 0, 20.0), (15.0, "host", 4, 4.0)]
    assert in_hours(run("restart", both)) == in_hours(run("restart", both[:1]))


def test_what_is_saved_before_a_planned_restart_stays() -> None:
    # Works from 6.25 h on, saves at 8 for half an hour, restarts until 9.5; the failure at 12 costs 2.5 h of work.
    twice = [(5.0, "host", 0, 3.0), (12.0, "host", 0, 3.0)]
    for policy in ("restart", "reload"):
        assert in_hours(run(policy, twice))["rollback"] == pytest.approx(5 + 2.5)
    # Cut short by the failure at 8.25, the save is in vain.
    cut = in_hours(run("reload", [(5.0, "host", 0, 3.0), (8.25, "host", 1, 3.0)]))
    assert cut["rollback"] > 5 + 1.5 and cut["checkpoint"] >= 0.25


def test_what_a_spare_has_replaced_is_not_felt() -> None:
    again = [(5.0, "host", 0, 20.0), (15.0, "chip", 0, 4.0)]
    assert in_hours(run("spare", again)) == in_hours(run("spare", again[:1]))


def test_a_larger_rectangle_must_pay() -> None:
    past = history(MESH, 60.0, [(5.0, "host", 0, 1.0)])
    speeds = Speeds(MESH, Step(lanes=0))
    calm = {hours: follow("restart", Site(MESH, COSTS, 0, speeds, hours), past, trace=True) for hours in (1.0, 100.0)}
    assert (calm[1.0].stretches or [])[-1].speed == pytest.approx(speeds.of_rectangle(16, 6))
    assert (calm[100.0].stretches or [])[-1].speed == 1.0


def test_route() -> None:
    account = run("route", TWO)
    got = in_hours(account)
    speed_at = {stretch.begin: stretch.speed for stretch in account.stretches or ()}
    one, two = speed_at[5.375], speed_at[15.375]
    assert 0.85 < two < one < 1
    assert speed_at[19.125] == one and speed_at[25.125] == 1.0
    assert got["reroute"] == pytest.approx(4 * 0.125) and got["detect"] == pytest.approx(0.5)
    assert "rollback" not in got and "restart" not in got
    # 59 h in which it works or writes: 5 checkpoints.
    assert got["checkpoint"] == pytest.approx(2.5)
    assert got["useful"] == pytest.approx(60 - 1 - 2.5 - got["hole"])


def test_reload_is_route_with_restarts() -> None:
    got = in_hours(run("reload", TWO))
    assert got["restart"] == pytest.approx(4.0) and got["rollback"] > 13
    assert "reroute" not in got


def test_a_failure_while_restarting_begins_anew() -> None:
    late = [(5.0, "host", 0, 1.0), (6.5, "host", 1, 1.0)]
    # Repaired at 6, restarting until 7, but at 6.5 another: repaired at 7.5, restarted at 8.5.
    got = in_hours(run("wait", late, hours=10.0))
    assert got == pytest.approx({"useful": 1.5, "rollback": 5.0, "detect": 0.5, "stopped": 1.5, "restart": 1.5})


def test_route_loses_its_state_only_with_the_last_chip() -> None:
    every = [(5.0 + i / 100, "host", i, 10.0) for i in range(16)]
    assert "rollback" not in in_hours(run("route", every[:15]))
    got = in_hours(run("route", every))
    assert got["rollback"] > 4.5 and got["stopped"] > 9


def test_no_failure_loses_only_checkpoints() -> None:
    for policy in POLICIES:
        assert in_hours(run(policy, [], hours=105.0)) == pytest.approx({"useful": 100.0, "checkpoint": 5.0}, rel=1e-15)
        assert in_hours(run(policy, [], interval=math.inf)) == {"useful": 60.0}


def plain_work(speeds: list[tuple[float, float]], interval: float, cost: float, tick: float) -> tuple[float, float]:
    """Useful and unsaved chip-hours of one chip, a tick at a time."""
    useful = unsaved = phase = 0.0
    for hours, speed in speeds:
        for _ in range(round(hours / tick)):
            if phase < interval - tick / 2:
                useful += tick * speed
                unsaved += tick * speed
            phase += tick
            if phase > interval + cost - tick / 2:
                unsaved = phase = 0.0
    return useful, unsaved


@pytest.mark.parametrize("seed", range(24))
def test_checkpoints_beside_a_clock_that_ticks(seed: int) -> None:
    random = np.random.default_rng(seed)
    speeds = [(float(random.integers(1, 400)) / 32, float(random.integers(1, 5)) / 4) for _ in range(12)]
    interval, cost = float(random.integers(1, 800)) / 32, float(random.integers(0, 200)) / 32
    account = Account(1, interval, cost)
    for hours, speed in speeds:
        account.speed = speed
        account.run(account.now + hours)
    useful, unsaved = plain_work(speeds, interval, cost, 1 / 32)
    assert (account.useful, account.unsaved) == pytest.approx((useful, unsaved), abs=1e-9)
    account.rollback()
    assert account.useful == pytest.approx(useful - unsaved, abs=1e-9)


RATES = {"chip": 2e-4, "board": 1e-4, "host": 3e-3, "link": 5e-4}
REPAIR = dict.fromkeys(RATES, 6.0)


@pytest.mark.parametrize("policy", POLICIES)
def test_random_histories_conserve_chip_hours(policy: str) -> None:
    speeds = Speeds(MESH, Step())
    for job in range(20):
        past = sample(MESH, 500.0, RATES, REPAIR, 0, job)
        speeds.solve(past.spans(), SILENT, most=20, plans=0)
        conserves(follow(policy, Site(MESH, COSTS, 2, speeds, 10.0), past), 500.0)


@pytest.mark.parametrize("policy", ["wait", "spare", "route", "reload"])
def test_more_failures_never_help(policy: str) -> None:
    """With checkpoints that are frequent and free, so that luck in their timing cannot outweigh a failure.

    Not `restart`: on a smaller mesh it cannot feel what fails outside.
    """
    interval = 1e-3
    costs = Costs(interval=interval, checkpoint=0.0, detect=0.25, restart=1.0, reroute=0.125)
    speeds = Speeds(MESH, Step())
    random = np.random.default_rng(5)
    for _ in range(15):
        all_of_them = sorted((float(random.uniform(0, 300)), "host", int(random.integers(16)), 8.0) for _ in range(12))
        useful = []
        for number in (12, 8, 4, 0):
            all_of_them = [all_of_them[i] for i in sorted(random.choice(len(all_of_them), number, replace=False))]
            past = history(MESH, 300.0, all_of_them)
            speeds.solve(past.spans(), SILENT, plans=0)
            useful.append(follow(policy, Site(MESH, costs, 2, speeds), past).useful)
        for more, fewer in pairwise(useful):
            assert more <= fewer + 24 * interval * CHIPS
        assert useful[-1] == 300.0 * CHIPS > useful[0]


def test_same_seed_same_history_and_kinds_have_streams_of_their_own() -> None:
    def hosts(past: History) -> list[tuple[float, bool]]:
        return [(change.time, change.failed) for change in past.changes if not change.piece.link]

    first = sample(MESH, 800.0, {"host": 1e-3, "link": 1e-4}, REPAIR, 7, 3)
    assert first == sample(MESH, 800.0, {"host": 1e-3, "link": 1e-4}, REPAIR, 7, 3)
    assert hosts(first) == hosts(sample(MESH, 800.0, {"host": 1e-3, "link": 9e-4}, REPAIR, 7, 3))
    even = sample(MESH, 800.0, {"host": 1e-2 / 16, "link": 1e-2 / count(MESH, "link")}, REPAIR, 7, 3)
    failed = [change for change in even.changes if change.failed]
    assert len({change.time for change in failed}) == len(failed) > 8
    assert first != sample(MESH, 800.0, {"host": 1e-3, "link": 1e-4}, REPAIR, 8, 3)
    assert first != sample(MESH, 800.0, {"host": 1e-3, "link": 1e-4}, REPAIR, 7, 4)
