"""What a run is refused for before it starts, in one sentence."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from meshmend.errors import JobError
from meshmend.run.checks import FILES, LARGEST, check
from meshmend.run.spec import RunSpec


@pytest.mark.parametrize(
    ("limit", "least", "says"),
    [(resource.RLIMIT_NOFILE, FILES, "ulimit -n"), (resource.RLIMIT_FSIZE, LARGEST, "ulimit -f")],
)
def test_a_limit_that_no_run_keeps_to_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, least: int, says: str
) -> None:
    (tmp_path / "train.py").touch()
    spec, most = RunSpec(run="mine", script=[str(tmp_path / "train.py")], workers=2), resource.RLIM_INFINITY
    for found in (most, least):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, found=found: (found if kind == limit else most, most))
        check(spec)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (least - 1 if kind == limit else most, most))
    with pytest.raises(JobError, match=says):
        check(spec)
