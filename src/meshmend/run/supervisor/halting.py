"""Stopping a run: one worker writes a checkpoint, and then all exit; and the status that the run ends with."""

from __future__ import annotations

from collections.abc import Sequence

from meshmend.base.clocks import HALT, TOGETHER
from meshmend.base.status import DONE, FAILED, HALTED, MISUSED
from meshmend.run.supervisor.actions import Halt, NoteHalt
from meshmend.run.supervisor.messages import Halting, Signalled
from meshmend.run.supervisor.observations import Cause, CourierState, RankSeen, StopSignal
from meshmend.run.supervisor.ranks import RankState
from meshmend.run.supervisor.state import Phase, Turn


def mind_halt(turn: Turn) -> None:
    """Tell workers to stop; a second signal, or too long a wait, kills them."""
    run, hurry = turn.run, turn.seen.signal is StopSignal.INTERRUPT
    if run.halted is None:
        hurry = False
        begin_halt(turn)
    assert run.halted is not None
    hurry = hurry or (turn.seen.signal is not None and turn.now - run.halted > TOGETHER)
    late = turn.now - run.halted > HALT
    for rank in run.living():
        if not rank.seen.ready:
            turn.kill(rank, Cause.NOT_OPENED)
        elif hurry or (late and (not rank.seen.saving or rank.seen.still.stopped)):
            turn.kill(rank, Cause.HALTED)


def begin_halt(turn: Turn) -> None:
    """Choose which worker writes the checkpoint, say why the run stops, and tell the workers to stop."""
    run = turn.run
    if run.halt_reason is None:
        assert turn.seen.signal is not None
        run.halt_reason = Signalled(turn.seen.signal)
    reason = run.halt_reason
    run.phase, run.halted, run.halted_fresh = Phase.HALTING, turn.now, run.fresh
    if run.writer is None:
        # Once the last step is done, a worker that has not heard of it was left out of the last steps: its state is
        # useless.
        able = [r for r in run.active() if r.state is not RankState.EXITING and (r.seen.over or not run.over())]
        # One without a courier may have been left out while the others went on: its state may be an old one, and a
        # checkpoint of slices needs the others.
        couriered = [r for r in able if r.seen.courier is not CourierState.LOST and not run.left_out(r)]
        run.writer = min((r.number for r in couriered or able), default=-1)
    turn.say(Halting(reason, checkpoint=run.writer >= 0))
    turn.do(NoteHalt(reason, run.writer), Halt(run.writer))


def exit_status(seen: Sequence[RankSeen], writer: int | None, *, halted: bool, kept: bool = False) -> int:
    """Return the exit status of the run: DONE if the job is done.

    `writer` is the rank that was to write the last checkpoint, if the run was halted. `kept`: when the run was halted,
    the last checkpoint already held everything there is to save.
    """
    # One that did not leave its job has not finished its last step, whatever status its script exits with.
    ended = [one for one in seen if one.status == DONE and (one.left or not one.ready)]
    # A worker that had the state can report that the job is done even if the run is halted at that moment.
    if any((one.over and one.active) or not halted for one in ended):
        # A death after the last step does not matter, but a failure that the script itself reports does.
        last = max((one.step for one in seen), default=0)
        ends = [one.status or 0 for one in seen if one.over and one.step == last]
        return FAILED if any(status > 0 and status != HALTED for status in ends) else DONE
    if kept or any(one.rank == writer and one.status == HALTED for one in seen):
        return HALTED
    errors = [one.error for one in seen if one.error is not None]
    return MISUSED if errors and all(error.mistake for error in errors) else FAILED
