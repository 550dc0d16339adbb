"""The audit: correct ledgers are clean, and every kind of mutant is found and named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshmend.base.status import HALTED
from meshmend.errors import FormatError, JobError
from meshmend.job.data.lanes import Lanes
from meshmend.report import check, compare
from meshmend.report.findings import epoch_ids
from meshmend.telemetry import Committed, Ended, Epoch, Event, Opened, Skipped
from tests.report.made import Attempt, opened, run

GOOD = run([Attempt(0, 12, 3, {4: 1}, {7: 1})])
"""12 steps of 8 samples in 4 lanes: 2.4 epochs of 40 samples."""


@st.composite
def runs(draw: st.DrawFn) -> tuple[list[Event], list[Attempt], dict[str, int]]:
    lanes = draw(st.integers(1, 8))
    batch = lanes * draw(st.integers(1, 4))
    data = {"lanes": lanes, "batch": batch, "size": batch + draw(st.integers(0, 70)), "seed": draw(st.integers(0, 9))}
    attempts, end = [], 0
    for number in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, end)) if number else 0
        end = begin + draw(st.integers(1, 25))
        workers = draw(st.integers(1, 6))
        happen = st.dictionaries(st.integers(begin, end), st.integers(0, 7), max_size=4)
        attempts.append(Attempt(begin, end, workers, draw(happen), draw(happen)))
    return run(attempts, draw(st.lists(st.integers(0, end), max_size=3)), **data), attempts, data


@given(runs(), st.randoms())
@settings(max_examples=150)
def test_correct_ledgers_are_clean(made: tuple[list[Event], list[Attempt], dict[str, int]], random: Any) -> None:
    events, attempts, data = made
    account = check(events)
    assert account.findings == []
    assert account.clean
    assert account.steps == attempts[-1].end
    assert account.lanes == account.steps * data["lanes"]
    assert account.epochs == account.steps * data["batch"] / data["size"]
    assert account.samples == (account.steps - account.skipped) * data["batch"]
    done = sum(attempt.end - attempt.begin for attempt in attempts)
    assert account.repeated == done - account.steps
    assert compare(events, events) is None
    random.shuffle(events)
    assert check(events) == account


@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 30), st.integers(0, 3))
def test_an_epoch_is_what_its_lanes_hold(lanes: int, lane_size: int, more: int, seed: int) -> None:
    data = Lanes(lanes * lane_size + more, lanes * lane_size, lanes, seed)
    row = np.concatenate([data.ids(step, lane) for step in range(9) for lane in range(lanes)])
    for epoch in range(len(row) // data.size):
        assert (epoch_ids(data, epoch) == row[epoch * data.size : (epoch + 1) * data.size]).all()


def changed(step: int, every: bool = True, **values: Any) -> list[Event]:
    """The good run with the lines of a step changed: those of all workers, or one."""
    mine = [e for e in GOOD if isinstance(e, Committed) and e.step == step][: None if every else 1]
    return [replace(event, **values) if any(event is own for own in mine) else event for event in GOOD]


def dropped(*steps: int) -> list[Event]:
    return [event for event in GOOD if not (isinstance(event, Committed) and event.step in steps)]


DATA, WHOLE = Lanes(40, 8, 4, 0), Lanes(40, 8, 1, 0)
DIGEST = next(e.digest for e in GOOD if isinstance(e, Committed) and e.step == 3)
SWAPPED = [
    replace(e, step=5 - e.step) if isinstance(e, Committed) and e.step in (2, 3) and e.rank == 0 else e for e in GOOD
]
MUTANTS: dict[str, tuple[list[Event], list[str | None]]] = {
    "a step is dropped": (
        dropped(6),
        ["step 6 is missing in the ledger", f"epoch 1: sample {WHOLE.ids(6, 0).min()} and 7 others were never counted"],
    ),
    "two steps are dropped": (dropped(9, 10), ["steps 9 to 10 are missing in the ledger", None]),
    "in an unfinished epoch": (dropped(10), ["step 10 is missing in the ledger"]),
    "the first step is dropped": (dropped(0), ["step 0 is missing in the ledger", None]),
    "a lane is dropped": (
        changed(3, by=[[0, 1], [1, 1], [2, 1]]),
        [
            "step 3: lane 3 was not counted by any worker (worker 0: 1 lane, worker 1: 1 lane, worker 2: 1 lane)",
            f"epoch 0: sample {min(DATA.ids(3, 3))} and 1 other were never counted",
        ],
    ),
    "all lanes are dropped": (changed(3, by=[]), ["step 3: lanes 0 to 3 were not counted by any worker ()", None]),
    "a lane is counted twice": (
        changed(3, by=[[0, 1], [1, 2], [2, 2]]),
        [
            "step 3: 5 lanes were counted where there are 4, so some twice (worker 0: 1 lane, worker 1: 2 lanes, "
            "worker 2: 2 lanes)",
            f"epoch 0: sample {min(DATA.ids(4, 0))} and 1 other were counted more than once",
        ],
    ),
    "a rank never was": (
        changed(3, by=[[0, 2], [1, 1], [9, 1]]),
        ["step 3: 1 lane counted for worker 9, which never took part"],
    ),
    "lines disagree in who": (
        changed(3, every=False, by=[[0, 2], [1, 1], [2, 1]]),
        [
            "step 3: the workers' lines disagree in who computed which lanes: worker 0 wrote (worker 0: 2 lanes, "
            "worker 1: 1 lane, worker 2: 1 lane), most wrote (worker 0: 1 lane, worker 1: 1 lane, worker 2: 2 lanes)"
        ],
    ),
    "lines disagree in the digest": (
        changed(3, every=False, digest="f00"),
        [f"step 3: the workers' states differ after it: worker 0 wrote digest f00, most wrote digest {DIGEST}"],
    ),
    "one worker swaps two steps": (
        SWAPPED,
        [
            "step 2: the workers' states differ after it: worker 0 wrote",
            "step 3: the workers' states differ after it: worker 0 wrote",
        ],
    ),
    "one worker writes a step twice": (
        [*GOOD, *(e for e in changed(3, every=False, digest="f00") if e not in GOOD)],
        [f"step 3: worker 0 wrote it more than once in attempt 0, differently: digest {DIGEST} and digest f00"],
    ),
    "lines of another attempt": (
        changed(3, epoch=Epoch(1, 1)),
        [
            "step 3 is missing in the ledger",
            "step 3: workers 0, 1 and 2 wrote a line of attempt 1, in which no worker had opened a job",
            None,
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name: str) -> None:
    events, expected = MUTANTS[name]
    account = check(events)
    assert not account.clean
    assert len(account.findings) == len(expected)
    for finding, begin in zip(account.findings, expected, strict=True):
        assert finding.startswith(begin or "epoch ")


def test_a_newcomer_cannot_have_worked_before_it_came() -> None:
    events = [*changed(3, by=[[0, 2], [1, 1], [5, 1]]), opened(5, step=6)]
    assert check(events).findings == ["step 3: 1 lane counted for worker 5, which took part only from step 6 on"]


def test_without_a_majority_both_sides_are_named() -> None:
    events = run([Attempt(0, 5, 4)])
    split = [replace(e, digest="f00") if isinstance(e, Committed) and e.step == 2 and e.rank > 1 else e for e in events]
    (finding,) = check(split).findings
    assert finding.startswith("step 2: the workers' states differ after it: workers 0 and 1 wrote digest ")
    assert finding.endswith(", workers 2 and 3 wrote digest f00")


def test_one_that_wrote_twice_does_not_hide_that_another_differs() -> None:
    events = [replace(e, digest="f00") if isinstance(e, Committed) and (e.step, e.rank) == (3, 1) else e for e in GOOD]
    twice = [replace(e, digest="f01") for e in GOOD if isinstance(e, Committed) and (e.step, e.rank) == (3, 0)]
    assert check([*events, *twice]).findings == [
        f"step 3: worker 0 wrote it more than once in attempt 0, differently: digest {DIGEST} and digest f01",
        f"step 3: the workers' states differ after it: worker 1 wrote digest f00, worker 2 wrote digest {DIGEST}",
    ]


def test_one_workers_line_is_enough_and_the_same_line_twice_is_not_too_much() -> None:
    gaps = [e for e in GOOD if not (isinstance(e, Committed) and e.step % 3 != e.rank and e.step not in (4, 5, 6))]
    assert check(gaps) == check(GOOD)
    assert check([*GOOD, *(replace(e, time=e.time + 1) for e in GOOD if isinstance(e, Committed))]) == check(GOOD)


def test_skipping_must_be_agreed() -> None:
    skip, commit = run([Attempt(0, 5, 3)], skips=[2]), run([Attempt(0, 5, 3)])
    assert check(skip).skipped == 1
    mixed = [
        theirs if isinstance(ours, Skipped) and ours.rank == 1 else ours
        for ours, theirs in zip(skip, commit, strict=True)
    ]
    (finding,) = check(mixed).findings
    assert finding.startswith("step 2: the workers' states differ after it: worker 1 wrote digest ")
    assert finding.endswith(", most wrote that it was skipped")


def test_void_lines_do_not_stand_in_for_those_of_the_new_attempt() -> None:
    events = run([Attempt(0, 8, 2), Attempt(4, 10, 2)])
    assert check(events).repeated == 4
    lost = [e for e in events if not (isinstance(e, Committed) and e.epoch.attempt == 1 and e.step == 6)]
    assert check(lost).findings[0] == "step 6 is missing in the ledger"
    voided = [
        replace(e, epoch=Epoch(0, 1)) if isinstance(e, Committed) and e.epoch.attempt == 1 and e.step == 6 else e
        for e in events
    ]
    assert check(voided).findings[0] == "step 6 is missing in the ledger"
    differ = [
        replace(e, digest="f00") if isinstance(e, Committed) and e.epoch.attempt == 0 and e.step >= 4 else e
        for e in events
    ]
    assert check(differ).clean, "what was rolled back does not matter"
    early = [*events, next(replace(e, step=1) for e in events if isinstance(e, Committed) and e.epoch.attempt == 1)]
    assert check(early).findings == ["step 1: worker 0 wrote a line of attempt 1, which began only at step 4"]


def attached_later(*, stopped: bool) -> list[Event]:
    """Worker 0 was cut off with the total of step 3, and stopped; the others did that step again with a newcomer."""
    late = [e for e in run([Attempt(0, 8, 3)]) if isinstance(e, Committed) and e.step >= 3]
    early = [e for e in run([Attempt(0, 4, 3)]) if not (isinstance(e, Committed) and e.step == 3 and e.rank > 0)]
    ended = [Ended(time=0.0, epoch=Epoch(0, 1), status=HALTED)] if stopped else []
    newcomer = replace(opened(0, step=3), epoch=Epoch(0, 2))
    again = [replace(e, epoch=Epoch(0, 2), by=[[0, 1], [2, 3]] if e.step == 3 else e.by) for e in late]
    return [*early, *ended, newcomer, *again]


def test_a_step_of_workers_that_were_cut_off_and_stopped_is_void_where_the_others_do_it_again() -> None:
    events = attached_later(stopped=True)
    assert check(events).clean and check(events).steps == 8
    assert check([*reversed(events)]).clean
    assert compare(events, run([Attempt(0, 8, 3)])) is None
    (finding,) = check(attached_later(stopped=False)).findings  # nobody was stopped: these are two halves
    assert finding.startswith("step 3: worker 0 wrote it more than once in attempt 0, differently")


def test_an_attempt_that_begins_after_the_last_line_shows_what_is_missing() -> None:
    events = [*run([Attempt(0, 5, 2)]), opened(0, step=8, attempt=1)]
    assert check(events).findings[0] == "steps 5 to 7 are missing in the ledger"


def test_different_data_is_an_error_of_one_sentence() -> None:
    with pytest.raises(JobError, match=r"worker 0 opened 40 samples .* seed=0, but worker 9 40 samples .* seed=7"):
        check([*GOOD, opened(9, seed=7)])
    with pytest.raises(JobError, match="no ledger"):
        check([event for event in GOOD if not isinstance(event, Opened)])
    with pytest.raises(FormatError, match="step 3: by="):
        check(changed(3, by=[[0, 5], [1, -1]]))


def test_a_run_that_has_only_opened() -> None:
    account = check([opened(0), opened(1)])
    assert (account.steps, account.epochs, account.clean, account.digest) == (0, 0.0, True, "")


def test_compare_finds_the_first_difference() -> None:
    alone = run([Attempt(0, 12, 1)])
    assert compare(GOOD, alone) is None, "the same states, whoever died"
    assert compare(changed(8, digest="f00"), alone) == 8
    assert compare(changed(8, every=False, digest="f00"), alone) == 8
    assert compare(run([Attempt(0, 12, 2)], skips=[4]), alone) == 4
    assert compare(run([Attempt(0, 9, 2)]), alone) == 9
    assert compare(run([Attempt(0, 9, 2), Attempt(5, 12, 1)]), alone) is None
