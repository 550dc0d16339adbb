"""What `meshmend audit` prints."""

from __future__ import annotations

import json

from meshmend.report import check, incidents, render, to_json
from meshmend.telemetry import Committed, Epoch
from tests.report.made import Attempt, opened, repaired, run

EVENTS = run([Attempt(0, 30, 4, {10: 1}, {20: 1}), Attempt(25, 40, 4)], skips=[33])


def test_a_clean_run() -> None:
    text = render(check(EVENTS), incidents(EVENTS))
    assert " ".join(text.split()).startswith(
        "audit: clean. 40 steps, 8 epochs of 40 samples, each lane of each step counted once, each sample of each "
        "finished epoch counted once, all workers' states equal after every step."
    )
    assert "5 steps done again after a checkpoint. 1 step (8 samples) skipped as asked" in " ".join(text.split())
    assert "worker 1 SIGKILL" in text
    assert "findings" not in text
    assert max(map(len, text.splitlines())) <= 100


def test_all_columns_fit() -> None:
    names = ["revoke", "shrink", "re_form", "exchange", "roll_forward", "state", "recompute", "first_commit"]
    epoch = Epoch(0, 1)
    long = repaired(0, 1000.55, 1000.58, [0, 1, 2], epoch, epoch._replace(shrink=1), **dict.fromkeys(names, 12.345))
    text = render(check(EVENTS), incidents([*EVENTS, long]))
    assert max(map(len, text.splitlines())) <= 100
    assert "12,345" in text


def test_findings_come_last_and_are_not_endless() -> None:
    events = [e for e in EVENTS if not (isinstance(e, Committed) and e.step % 2)]
    text = render(check(events), incidents(events))
    assert text.startswith("audit: NOT clean, 2")
    assert text.index("incidents (times") < text.index("findings:\n- step 1 is missing in the ledger\n")
    assert text.endswith("--json has all")


def test_nothing_yet() -> None:
    assert render(check([opened(0)]), []).startswith("audit: nothing to audit yet")


def test_json_holds_all() -> None:
    facts = json.loads(to_json(check(EVENTS), incidents(EVENTS)))
    assert facts["clean"]
    assert facts["steps"] == 40
    assert [incident["level"] for incident in facts["incidents"]] == ["SHRINK", "NEW_WORLD", "CHECKPOINT"]
    assert facts["incidents"][1]["times"]["re-form"] == 0.8
