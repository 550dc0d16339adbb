"""What a worker records of its steps."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from meshmend.base.env import Settings
from meshmend.job.ledger import StepLedger
from meshmend.job.state.digest import Later
from meshmend.telemetry import Committed, Epoch, read


def test_a_step_is_recorded_later_with_the_time_when_it_was_done(tmp_path: Path) -> None:
    ledger = StepLedger(Settings(run="r", rank=0, folder=tmp_path))
    fetched: list[float] = []

    def digest() -> int:
        fetched.append(time.time())
        return 7

    ledger.committed(Epoch(0, 1, 0), 3, [[0, 0, 1]], {0: 7, 1: 7}, Later(digest), {"loss": 0.5}, False)
    after = time.time()
    assert not fetched  # nobody has waited for the device yet
    ledger.confirm()
    [event] = [one for one in read(tmp_path, "worker-0") if isinstance(one, Committed)]
    assert event.time <= after <= fetched[0]
    assert (event.step, event.digest, event.metrics) == (3, f"{7:012x}", {"loss": 0.5})


@pytest.mark.parametrize(("run", "metrics", "lines"), [(True, {}, 1), (False, {}, 0), (False, {"loss": 0.5}, 1)])
def test_a_run_tells_its_steps_also_without_metrics(
    run: bool, metrics: dict[str, float], lines: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With plain python, a script prints what it prints."""
    ledger = StepLedger(Settings(run="r", rank=0, folder=tmp_path) if run else None)
    ledger.committed(Epoch(0, 1, 0), 3, [[0]], {0: 7}, Later(lambda: 7), metrics, True)
    assert capsys.readouterr().out.count("step 3") == lines
