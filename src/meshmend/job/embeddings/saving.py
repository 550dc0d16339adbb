"""Checkpoints of a job with embedding tables: one file per slice, and an index that has the rest of the state.

    folder/slices-00000120/0000-5f1c….safetensors    its rows, with what the optimizer remembers of them
                           …
           step-00000120.safetensors                 written last: the state that all have, and the names of the others

All workers stop to write a checkpoint: each writes the slices that it is the first to hold, and tells the others. When
none is missing, the first worker writes the index. If one dies meanwhile, others write what it had not told. A slice is
the same whoever holds it, and is named after its digest: so a run resumes with any number of workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from meshmend.base.clocks import HALT_SLICES
from meshmend.base.env import Settings
from meshmend.base.schema import checked
from meshmend.errors import FormatError, JobError
from meshmend.job.checkpoints.checkpoints import Checkpoints
from meshmend.job.checkpoints.saving import Saver, State
from meshmend.job.embeddings.files import ROWS, Index, SliceFiles, name_of
from meshmend.job.embeddings.holder import TableHolder
from meshmend.job.frameworks.base import Framework
from meshmend.job.ledger import StepLedger
from meshmend.job.reduction.footer import Word
from meshmend.job.session.hooks import Hooks
from meshmend.job.session.session import WorkerSession
from meshmend.job.session.solo import Solo
from meshmend.job.shm.mailbox import WorkerSide
from meshmend.job.shm.segment import WorkerSegment
from meshmend.job.slices.files import SHARDED, drop_unnamed, folder_of
from meshmend.job.state.safetensors import malformed, path_of, save
from meshmend.job.state.values import from_bytes, to_bytes

NAMES = "tables"
"""What an index says of its tables, among what it says of its job."""
NONE = {"folder": "slices-00000000", "names": [], "rows": [], "width": 0, "memory": 0}
"""That a job has none."""


class TableCheckpoints(Checkpoints):
    """A worker's checkpoints, which all write together."""

    def __init__(self, settings: Settings | None, ledger: StepLedger, job: int, holder: TableHolder) -> None:
        super().__init__(settings, ledger, job)
        self._holder = holder
        self.names: dict[int, str] = {}
        """The files of all slices, of the checkpoint that is written."""
        self.written = -1
        """The step of the last checkpoint."""

    def due(self, step: int) -> bool:
        """Whether it is time for one."""
        return self._pace.due(step)

    def offer(self, framework: Framework, step: int, about: Callable[[], dict[str, Any]]) -> None:
        """Nothing is written when a step is confirmed: its rows have changed since."""

    def write(self, step: int, slices: frozenset[int]) -> dict[int, str]:
        """Write slices of the tables before `step`; their names."""
        folder, names = folder_of(self._folder, step), {}
        for number in sorted(slices):
            rows = self._holder.slice(number)
            name = names[number] = name_of(number, rows)
            if not path_of(folder, 0, name).exists():
                save(folder, [(ROWS, rows)], step=step, about={}, name=name, sweep=False)
        return names

    def now(self, framework: Framework, step: int, about: dict[str, Any], name: str = "") -> bool:
        """Write the index, if all slices are there."""
        if len(self.names) < self._holder.shape.slices:
            return self.written == step
        shape = self._holder.shape
        where = {
            "folder": folder_of(self._folder, step).name, "names": [self.names[n] for n in range(shape.slices)],
            "rows": list(shape.rows), "width": shape.width, "memory": shape.memory,
        }  # fmt: skip
        # `drop_unnamed` keeps the folders that an index names like this.
        made = super().now(framework, step, {**about, NAMES: where, SHARDED: {"folder": where["folder"]}}, name)
        if made:
            older = sorted(self._folder.glob("step-*.safetensors"))[:-2]
            for old in older:
                old.unlink(missing_ok=True)
            drop_unnamed(self._folder, step)
        return made

    def close(self) -> None:
        """The job is over: nobody reads rows from here any more."""
        super().close()
        self._holder.close()

    def done(self, step: int) -> None:
        """There is a checkpoint of this step."""
        self.names, self.written = {}, step
        self._pace.began(step)

    def load(
        self, path: str | Path, framework: Framework, job: dict[str, Any]
    ) -> tuple[int, list[int], dict[str, Any]]:
        """Adopt a checkpoint: see `Checkpoints.load`. Rows are read from its files until they are updated."""
        step, grid, about = super().load(path, framework, job)
        shape = self._holder.shape
        try:
            found = checked(Index, about.get(NAMES, NONE))
        except FormatError as error:
            raise malformed(path, error) from None
        theirs = tuple(found.rows), found.width, found.memory, len(found.names)
        if theirs != (shape.rows, shape.width, shape.memory, shape.slices):
            raise JobError(
                f"{path} was written by a job with {len(found.rows)} embedding tables of different sizes or with a "
                "different optimizer; resume with the script that wrote it"
            )
        self._holder.resume(step, SliceFiles(Path(path).parent / found.folder, found.names, shape))
        return step, grid, about


class TableSaver(Saver):
    """Writes the state and the tables, with the other workers."""

    def __init__(
        self, settings: Settings | None, ledger: StepLedger, state: Callable[[], State | None], holder: TableHolder,
        session: WorkerSession | Solo, rank: int,
    ) -> None:  # fmt: skip
        self._holder, self._session, self._rank = holder, session, rank
        super().__init__(settings, ledger, state)

    def open(self, job: int) -> None:
        """The checkpoints are those of this job of the script."""
        self.tables = TableCheckpoints(self._settings, self._ledger, job, self._holder)
        self.checkpoints = self.tables

    def begin(self) -> None:
        """All workers are to write a checkpoint of the state after this step."""
        self.together(self._session, self._rank, word=Word.SAVE)

    def halted(self) -> bool:
        """The run is halted, and this worker ends; whether the state is saved, which it cannot do by itself."""
        self._ledger.confirm()
        return True

    def after_error(self, session: WorkerSession | Solo, *, summed: bool) -> None:
        """Write nothing: nobody has the whole state."""

    def together(
        self, session: WorkerSession | Solo, rank: int, name: str = "", metrics: Mapping[str, float] | None = None,
        word: Word | None = None,
    ) -> None:  # fmt: skip
        """Have every worker write slices while the others wait, and the first the index; if one dies, others do."""
        every, state = frozenset(range(self._holder.shape.slices)), self._state()
        assert state is not None, "there is one before it can be saved"
        framework, step, about = state
        written, done = dict[int, str](), False
        while True:
            told = to_bytes({"held": sorted(self._holder.shelf.copies), "slices": written, "done": done})
            found = {
                who: from_bytes(data)
                for who, data in session.exchange(word or (Word.SAVE if name else Word.END), told).items()
            }
            self._ledger.confirm()
            if found[min(found)]["done"]:
                break
            held = {who: frozenset(one["held"]) for who, one in found.items()}
            there: dict[int, str] = {}
            for one in found.values():
                there |= one["slices"]
            with session.waits_for_room():
                if missing := every - there.keys():
                    written |= self.tables.write(step, self._holder.share(missing, held))
                elif min(found) == rank:
                    self.tables.names = there
                    more = {**about, "metrics": dict(metrics)} if metrics else about
                    self.tables.now(framework, step, more, name)  # or it was said why not: nobody can do better
                    done = True
        self.tables.done(step)
        if name:
            self._named.add(name)


class TableSide(Hooks):
    """What a session asks about saving: all workers must save the same step, and none can alone."""

    def __init__(self, segment: WorkerSegment, saver: TableSaver) -> None:
        self._segment, self._side, self._saver = segment, WorkerSide(segment), saver
        self._halted = 0.0
        """When this worker heard that it has to stop."""

    def saves(self, *, first: bool) -> bool:
        """When a checkpoint is due, or this worker has to stop."""
        return (first and self._saver.tables.due(self._segment.worker.step + 1)) or self._side.halt() is not None

    def stays(self) -> bool:
        """Until the last step is saved; not for ever."""
        if not self._side.is_active():
            return False
        self._halted = self._halted or time.monotonic()
        late = time.monotonic() - self._halted >= HALT_SLICES
        return self._saver.tables.written != self._segment.worker.step and not late
