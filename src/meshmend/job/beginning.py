"""How a worker begins a job: with the state that its script shares, with a checkpoint, or with another worker's state.

Or not at all: where the run has done the job already, the worker takes the state that the job has left, and passes
through. From then on the loop of `training.py` does not know which of these it was.

Sharded updates and tables are loaded by the jobs that use them: what a start takes, every worker takes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshmend.base.signatures import takes
from meshmend.errors import JobError, NotFinite
from meshmend.job.checkpoints.checkpoints import DIVERGED
from meshmend.job.checkpoints.folders import folder_of, job_of
from meshmend.job.faults import Point
from meshmend.job.frameworks.base import Framework
from meshmend.job.frameworks.draws import Draws
from meshmend.job.frameworks.weights import Weights
from meshmend.job.replica import MORE_GRIDS, Replica
from meshmend.job.sequence import SCRIPT
from meshmend.job.session.session import Unneeded
from meshmend.job.session.solo import Passing
from meshmend.job.training import Training

if TYPE_CHECKING:
    from meshmend.job.embeddings.tables import EmbeddingTables
    from meshmend.job.slices.replica import Sharded


def begin(
    training: Training,
    framework: Framework,
    warm: Callable[..., Any] | None,
    sharded: Sharded | None = None,
    tables: EmbeddingTables | None = None,
) -> None:
    """Begin with this state, or that of a checkpoint, or that of another worker; see `Job.share`."""
    training.calls.check_process("share")
    replica = training.replica = _made(training, framework, sharded, tables)
    training.calls.sharded, training.calls.tables = sharded is not None, tables is not None
    if training.settings is not None:
        training.number = SCRIPT.begin()
        training.saver.open(training.number)
        resume = Path(training.settings.resume) if training.settings.resume else None
        passed = max(training.settings.passed, job_of(resume) - 1 if resume is not None else 0)
        if training.number <= passed:
            _pass(training, replica)
            return
        if resume is not None and job_of(resume) == training.number:
            _load(training, resume, replica)
    _prepare(training, replica, warm)
    training.session.strike(Point.SHARE)
    try:
        _join(training, replica)
    except Unneeded:
        _pass(training, replica)
        return
    reduction = training.config.kind.reduction
    training.ledger.opened(training.session.epoch, training.step, training.lanes, reduction, training.number)
    training.began, training.calls.shared = training.step, True
    training.input.expect(training.step)


def _made(training: Training, framework: Framework, sharded: Sharded | None, tables: EmbeddingTables | None) -> Replica:
    """What this worker will have of the state; what saves it comes with it."""
    config, session, settings, ledger = training.config, training.session, training.settings, training.ledger
    replica: Replica
    if tables is not None:
        from meshmend.job.embeddings.spreading import spread

        tables.may_read = lambda: training.calls.check_rows(training.step)
        replica, training.saver = spread(tables, framework, config, session, settings, ledger, training.state)
    elif sharded is not None:
        from meshmend.job.slices.answers import shard
        from meshmend.job.slices.saving import SliceSaver

        assert isinstance(framework, Weights), "it was made for a sharded job"
        save = partial(SliceSaver, settings, ledger, training.state)
        replica, training.saver = shard(framework, sharded, config, session, settings, save)
    else:
        replica = Replica(framework, config, compared=settings is not None)
    return replica


def _prepare(training: Training, replica: Replica, warm: Callable[..., Any] | None) -> None:
    """Find the device, take the first digest, and compile what a lane needs, before this worker counts as ready."""
    framework, messages = replica.framework, training.session.messages
    messages.device, messages.on_device = (lambda: framework.cuda), bool(framework.device)
    framework.digester = messages.digests()
    replica.announce(training.session, training.step)
    if warm is None:
        return
    key = training.key(0)
    more = (Draws(*key),) if takes(warm, 3) else ()
    tree = framework.lane(lambda: warm(framework.shared, training.lane(0), *more), key)
    if training.settings is not None:
        replica.warm(tree, packed=framework.digester is not None)
    framework.drop()


def _join(training: Training, replica: Replica) -> None:
    """Become a member, and take the state of another worker if the job has gone on without this one."""

    def export(on_device: bool) -> list[Any]:
        return replica.export(training.session, training.step, training.ledger.pending, on_device=on_device)

    received = training.session.share(training.number, export)
    if received is not None:
        training.step, pending = replica.adopt(received, training.session)
        training.ledger.take_over(pending)
        replica.announce(training.session, training.step, arrived=True)


def _load(training: Training, checkpoint: Path, replica: Replica) -> dict[str, Any]:
    """Take the state of a checkpoint; returns what it says of its job."""
    loaded = training.saver.checkpoints.load(checkpoint, replica.framework, training.config.identity())
    training.step, grid, about = loaded
    replica.restore(grid, about.get(MORE_GRIDS, ()))
    training.epochs_done = about.get("epochs")
    return about


def _pass(training: Training, replica: Replica) -> None:
    """Take the state that this job has left, in place of training: the run has done it already."""
    found = training.saver.checkpoints.last()
    if found is None:
        assert training.settings is not None, "only a run has done a job already"
        if training.number > training.settings.passed:
            training.session.exit_unneeded()
        raise JobError(
            f"job {training.number} of this run is done, but its last state cannot be found in "
            f"{folder_of(training.settings.folder, training.number)}; all hosts must share one runs folder"
        )
    about = _load(training, found, replica)
    training.session = Passing(training.lanes.lanes, training.session.wanted, training.rank, training.number)
    training.began, training.calls.shared, training.passing = training.step, True, True
    if about.get(DIVERGED):  # the others left the job by an exception, and so must this one
        training.diverged = NotFinite(training.step, *map(str, about[DIVERGED]))
        raise training.diverged
