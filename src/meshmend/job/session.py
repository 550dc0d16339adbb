"""A worker's end of the memory it shares with its courier."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

from meshmend.base.env import Settings
from meshmend.base.processes import kill
from meshmend.errors import JobError
from meshmend.job.faults.faults import Fault, Faults
from meshmend.job.protocol import NEVER, Total, divide
from meshmend.job.reduction.sums import ExactSums, FloatSums
from meshmend.job.reduction.wire import Footer
from meshmend.job.shm.segment import Segment, free, too_small

HALTED = 75
"""The status of a worker, and of a run, that ended early with a checkpoint (EX_TEMPFAIL: try again later)."""


class WorkerSession:
    """Answers the courier's questions: parts of rounds (in the main thread), and the state (beside it)."""

    def __init__(self, settings: Settings, lanes: int) -> None:
        self._segment = Segment(settings.run, settings.rank)
        self.wanted = wanted = int(self._segment["wanted"])
        if lanes < wanted:
            raise JobError(f"{lanes} lanes are too few for {wanted} workers: each needs at least one")
        self._footer = Footer(lanes, self._segment["ranks"])
        self._round = NEVER + 1
        self._digested = NEVER - 1
        self._digest = 0
        self._have: set[int] = set()
        self._export: Callable[[], list[Any]] | None = None
        self._news = threading.Condition()
        self.save: Callable[[], bool] = lambda: True
        """Writes a checkpoint of the last committed state, when the run is halted; whether it could."""
        self.faults: Faults | None = None
        self.account = Total((), {}, 0)
        """Who did what in the last round."""
        self._lanes = lanes
        self.mine = divide(lanes, wanted, settings.rank) if settings.rank < wanted else ()
        """The lanes that this worker was asked for last; before that, those it may expect."""
        threading.Thread(target=self._listen, name="meshmend", daemon=True).start()

    @property
    def first(self) -> bool:
        """Whether this worker speaks for all: it has the lowest rank of those that took part in the last round."""
        return min(self.account.digests, default=-1) == self._segment.rank

    def _listen(self) -> None:
        """Wake the main thread when the courier rings, and hand out the state when it asks for it."""
        exported = 0
        while True:
            self._segment.listen("worker", 0.5)
            with self._news:
                asked, done = self._segment["state_asked"], self._segment["done"]
                # The state of the last round is there once the worker has committed it.
                if asked != exported and self._export is not None and self._digested >= done:
                    self._hand_out(self._export())
                    self._segment["state_round"] = self._digested
                    self._segment["exported"] = exported = asked
                    self._segment.ring("courier")
                self._news.notify_all()

    def _hand_out(self, state: list[Any]) -> None:
        """Put the state down; a worker that cannot is of no use to the others, who would wait for it."""
        try:
            self._segment.write_state(state)
        except OSError as error:
            why = f"handing its state out {too_small(nbytes(state), error)}"
            self._segment.write_error(self._segment["step"], why, f"{why}\n", mistake=False)
            os._exit(1)

    def _wait(self, until: Callable[[], bool]) -> None:
        with self._news:
            while not until() and not self._segment["halt"]:
                self._news.wait(1.0)
        self._heed()

    def _heed(self) -> None:
        """End here if the run is halted; one of those that end writes the checkpoint."""
        halt = self._segment["halt"]
        if not halt:
            return
        if halt == 2 or self.first:
            self._segment["saving"] = 1
            saved = self.save()
            self._segment["saving"] = 0
            if not saved:
                os._exit(1)
        os._exit(HALTED)

    def share(self, export: Callable[[], list[Any]]) -> Any | None:
        """Offer this state, and wait to be a member; what another worker gave, if it did."""
        with self._news:
            self._export = export
        self._segment["lanes"] = self._lanes  # now this worker counts as ready
        self._wait(lambda: bool(self._segment["active"] or self._segment["over"]))
        if self._segment["over"] and not self._segment["active"]:
            self._segment["left"] = 1
            os._exit(0)  # a spare that was never needed
        self._round = self._segment["done"] + 1
        return self._segment.read_state() if self._segment["given"] else None

    def digested(self, step: int, digest: int) -> None:
        """The state after the last round is final, it is the one before this step, and this is its digest."""
        with self._news:
            self._digest, self._digested = digest, self._round - 1
        self._segment["step"] = step
        self._segment["progress"] += 1
        self._segment.ring("worker")
        self._heed()

    def round(self, prepare: Callable[[Any], FloatSums | ExactSums]) -> Generator[int, Any, Any]:
        """Bring this worker's part of a round, more lanes if others die, until the total is there.

        Yields the number of each lane that is to be computed, is sent its tree, and returns the total.
        """
        segment, number = self._segment, self._round
        self._have = set()
        while True:
            self._wait(lambda: segment["done"] >= number or self._question(number) is not None)
            if segment["done"] >= number:
                self._round += 1
                total = segment.total(number)
                self.account = self._footer.read(total)
                return total
            question = self._question(number)
            if question is None:
                continue
            asked, wanted = question
            self.mine = wanted
            if not self._have <= set(wanted) or segment["afresh"]:
                self._have = set()
                segment["afresh"] = 0
            if not wanted and segment["wire"]:
                segment.buffer(0)[:] = 0
            segment["inside"] = 1
            segment["progress"] += 1
            # Even a member without lanes brings a part: it computes one lane to learn how large that is.
            sums = None
            for lane in wanted or (() if segment["wire"] else (0,)):
                if lane not in self._have:
                    self.strike("compute")
                    tree = yield lane
                    sums = prepare(tree)
                    if not segment["wire"]:
                        size = sums.wire_size + self._footer.size
                        segment.make_bulk(size, sums.wide, sums.packed, sums.layout.number)
                        self._require_room()
                    if lane in wanted:
                        sums.add(segment.buffer(0)[: sums.wire_size], tree, first=not self._have)
                        self._have.add(lane)
                    segment["progress"] += 1
            if sums is not None and self._have:
                sums.put(segment.buffer(0)[: sums.wire_size])
            segment["inside"] = 0
            self._answer(asked, sorted(self._have), leaving=False)

    def _require_room(self) -> None:
        """Find out now, and not after a death, whether the state can be handed to the next one."""
        needed = nbytes(self._export()) if self._export is not None and self._segment["ranks"] > 1 else 0
        if needed > free():
            raise JobError(
                f"the state of rank {self._segment.rank}, for whoever takes a dead one's place, {too_small(needed)}"
            )

    def _question(self, number: int) -> tuple[int, tuple[int, ...]] | None:
        """(its number, lanes) of the courier's question about this round, if it has not been answered."""
        while True:
            asked = self._segment["asked"]
            found = asked, self._segment.asked_lanes()
            if self._segment["asked"] == asked:
                break
        if asked == self._segment["answered"] or self._segment["asked_round"] != number:
            return None
        return found

    def _answer(self, asked: int, lanes: list[int], *, leaving: bool) -> None:
        self._footer.write(self._segment.buffer(0), lanes, self._segment.rank, self._digest, leaving)
        self._segment["answered"] = asked
        self._segment.ring("courier")

    def strike(self, point: str) -> Fault | None:
        """Bring about the failure that a test asked for here."""
        if point == "commit" and self._segment["flip"]:
            self._segment["flip"] = 0
            return Fault(rank=self._segment.rank, step=self._segment["step"], point=point, kind="flip")
        fault = self.faults.strike(point, self._segment["step"]) if self.faults is not None else None
        if fault is not None and fault.kind == "courier":
            kill(self._segment["courier"])
        return fault

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Tell those who watch that this worker may be still for long; one pause may lie within another."""
        before, self._segment["paused"] = self._segment["paused"], 1
        try:
            yield
        finally:
            self._segment["paused"] = before

    def leave(self) -> None:
        """No more steps: stay until all the others have the last total too."""
        if not self._segment["wire"]:
            return  # it came too late for any step; when it ends, the others go on without it
        while not self._segment["over"]:
            self._wait(lambda: bool(self._segment["over"]) or self._question(self._round) is not None)
            question = self._question(self._round)
            if question is not None:
                self._segment.buffer(0)[:] = 0
                self._answer(question[0], [], leaving=True)


def nbytes(pieces: list[Any]) -> int:
    """How many bytes these are."""
    return sum(memoryview(piece).nbytes for piece in pieces)
