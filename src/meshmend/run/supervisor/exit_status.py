"""The exit status of a run, from how its workers have ended."""

from __future__ import annotations

from collections.abc import Sequence

from meshmend.job.session import HALTED
from meshmend.run.agent.agent import View


def outcome(views: Sequence[View], writer: int, halting: str) -> int:
    """0 if the job was done; `writer` is the rank that was to write the last checkpoint, where the run was halted."""
    if any(view.status == 0 and (view.over or not view.ready) for view in views) and not halting:
        # A death after the last step takes nothing away, but what the script itself says counts.
        return int(any(view.over and (view.status or 0) > 0 for view in views))
    if any(view.rank == writer and view.status == HALTED for view in views):
        return HALTED
    errors = [view.error for view in views if view.error]
    return 2 if errors and all(error["mistake"] for error in errors) else 1
