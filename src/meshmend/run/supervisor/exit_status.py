"""The exit status of a run, from how its workers ended."""

from __future__ import annotations

from collections.abc import Sequence

from meshmend.base.status import DONE, FAILED, HALTED, MISUSED
from meshmend.run.supervisor.observations import RankSeen


def exit_status(seen: Sequence[RankSeen], writer: int, *, halted: bool) -> int:
    """DONE if the job was; `writer` is the rank that was to write the last checkpoint, where the run was halted."""
    ended = [one for one in seen if one.status == DONE and (one.over or not one.ready)]
    if any(one.active for one in ended) or (ended and not halted):  # a signal may come when the last step is done
        # A death after the last step takes nothing away, but a failure that the script itself reports counts.
        last = max(one.step for one in seen)
        failed = any(one.over and one.active and one.step == last and (one.status or 0) > 0 for one in seen)
        return FAILED if failed else DONE
    if any(one.rank == writer and one.status == HALTED for one in seen):
        return HALTED
    errors = [one.error for one in seen if one.error is not None]
    return MISUSED if errors and all(error.mistake for error in errors) else FAILED
