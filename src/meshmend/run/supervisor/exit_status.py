"""The exit status of a run, from how its workers ended."""

from __future__ import annotations

from collections.abc import Sequence

from meshmend.base.status import DONE, FAILED, HALTED, MISUSED
from meshmend.run.supervisor.observations import RankSeen


def exit_status(seen: Sequence[RankSeen], writer: int, *, halted: bool) -> int:
    """DONE if the job was; `writer` is the rank that was to write the last checkpoint, where the run was halted."""
    # A worker that had the state can say that the job is done even to one who halts the run in that moment.
    done = any(one.status == DONE and one.over and one.active for one in seen)
    if done or (not halted and any(one.status == DONE and (one.over or not one.ready) for one in seen)):
        # A death after the last step takes nothing away, but a failure that the script itself reports counts.
        last = max((one.step for one in seen), default=0)
        ends = [one.status or 0 for one in seen if one.over and one.step == last]
        return FAILED if any(status > 0 and status != HALTED for status in ends) else DONE
    if any(one.rank == writer and one.status == HALTED for one in seen):
        return HALTED
    errors = [one.error for one in seen if one.error is not None]
    return MISUSED if errors and all(error.mistake for error in errors) else FAILED
