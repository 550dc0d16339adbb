"""Processes over shared words, one access at a time: whoever runs may be interrupted, or killed, before any of them.

Words are kept in lists, and each read and each write is one step. Between any two steps another actor may run instead,
and an actor may be killed before any step. The actors are small loops, but every access they make is made by the
classes of production (`job/shm`, and what uses it), over the words of an `Interleaving` in place of a mapped file.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt

from meshmend.job.shm.control import ORDER
from meshmend.job.shm.files import RankFiles
from meshmend.job.shm.words import Record

MOST_STEPS = 20_000


class Killed(BaseException):
    """This actor is dead."""


class Deadlock(AssertionError):
    """All actors wait for each other."""


@dataclass
class Actor:
    """One thread of control; only one runs at a time."""

    name: str
    main: Callable[[], None]
    number: int = 0
    steps: int = 0
    waits: int | None = None
    """The version of memory that it found nothing new in."""
    ended: bool = False
    doomed: bool = False
    works: bool = False
    """A courier that has entered its world."""
    baton: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.baton.acquire()


Policy = Callable[["Interleaving", Actor, list[Actor]], Actor]
"""Who takes the next step: the simulation, who runs now, who could run."""


class Interleaving:
    """One run."""

    def __init__(
        self, policy: Policy, *, kill: tuple[str, int] | None = None, then: tuple[str, int] | None = None
    ) -> None:
        self.policy = policy
        self.kills = [one for one in (kill, then) if one is not None]
        """Who is killed before which of its steps, one after the other."""
        self.words: dict[type[Record], list[int]] = {kind: kind.initial() for kind in ORDER}
        self.files = SteppedFiles(self)
        self.version = self.total_steps = 0
        self.failure: BaseException | None = None
        self.over = threading.Event()
        self.actors: list[Actor] = []
        self.current: Actor

    def add(self, name: str, main: Callable[[], None], number: int = 0) -> Actor:
        """Another thread of control, which runs when it has been started."""
        actor = Actor(name, main, number)
        self.actors.append(actor)
        return actor

    def died(self, actor: Actor) -> None:
        """What follows from a kill."""

    def run(self) -> Self:
        """Until all have ended."""
        self.current = self.actors[0]
        threads = [self.start(actor) for actor in self.actors]
        self.actors[0].baton.release()
        assert self.over.wait(60), "the simulator itself hangs"
        for thread in threads:
            thread.join(60)
        if self.failure is not None:
            raise self.failure
        return self

    def start(self, actor: Actor) -> threading.Thread:
        """Let it run."""
        thread = threading.Thread(target=self._play, args=[actor], daemon=True)
        thread.start()
        return thread

    def _play(self, actor: Actor) -> None:
        actor.baton.acquire()
        try:
            if self.failure is None and not actor.doomed:
                actor.main()
        except Killed:
            if self.failure is None:
                self.died(actor)
        except BaseException as error:
            self.failure = self.failure or error
        actor.ended = True
        self.version += 1
        self._hand_over(actor)

    def step(self) -> None:
        """Before each access: somebody else may be next, or this actor dies."""
        actor = self.current
        if self.failure is not None or actor.doomed:
            raise Killed
        actor.steps += 1
        self.total_steps += 1
        assert self.total_steps < MOST_STEPS, "no end in sight"
        if self.kills and self.kills[0] == (actor.name, actor.steps):
            self.kills.pop(0)
            raise Killed
        self._switch(actor, self.policy(self, actor, self._runnable()))

    def _runnable(self) -> list[Actor]:
        return [a for a in self.actors if not a.ended and (a.waits != self.version or a.doomed)]

    def _switch(self, actor: Actor, following: Actor) -> None:
        if following is not actor:
            self.current = following
            following.baton.release()
            actor.baton.acquire()
        if self.failure is not None or actor.doomed:
            raise Killed

    def _hand_over(self, actor: Actor) -> None:
        """This one has ended: the next, or the end of the run."""
        left = self._runnable() if self.failure is None else [a for a in self.actors if not a.ended]
        if left:
            self.current = left[0] if self.failure is not None else self.policy(self, actor, left)
            self.current.baton.release()
        elif all(a.ended for a in self.actors):
            self.over.set()
        else:
            self.failure = self.failure or Deadlock(self._left())
            self._hand_over(actor)

    def _left(self) -> list[str]:
        return [f"{actor.name} {actor.number}" for actor in self.actors if not actor.ended]

    def wait(self, until: Callable[[], object]) -> None:
        """Look again whenever memory has changed."""
        actor = self.current
        while True:
            version = self.version
            if until():
                return
            actor.waits = version
            left = self._runnable()
            if not left:
                raise Deadlock(self._left())
            self._switch(actor, self.policy(self, actor, left))
            actor.waits = None

    def words_of(self, kind: type[Record], *, writable: bool = False) -> Any:
        """Take the place of `Control`."""
        return SteppedWords(self, self.words[kind], writable)

    birth = 1

    def segment(self, kind: type[Any]) -> Any:
        """A segment of the production code over the words of this simulation."""
        found = kind(self.files, cast(Any, self))
        found.worker_bell = found.courier_bell = Silent()
        return found

    def put(self, where: list[Any], *values: Any) -> None:
        """Write a buffer, in several steps."""
        for place, value in enumerate(values):
            self.step()
            where[place] = value
            self.version += 1

    def get(self, where: list[Any]) -> list[Any]:
        """Read a buffer, in several steps."""
        found = []
        for place in range(len(where)):
            self.step()
            found.append(where[place])
        return found


class SteppedWords:
    """The words of a record, each access a step."""

    def __init__(self, simulation: Interleaving, words: list[int], writable: bool) -> None:
        self._simulation, self._words, self._writable = simulation, words, writable

    def __getitem__(self, place: int) -> int:
        self._simulation.step()
        return self._words[place]

    def __setitem__(self, place: int, value: int) -> None:
        if not self._writable:
            raise TypeError("cannot modify read-only memory")
        self._simulation.step()
        self._words[place] = value
        self._simulation.version += 1


class SteppedFiles(RankFiles):
    """State files in memory: what `RankFiles` does with names, each a step."""

    def __init__(self, simulation: Interleaving) -> None:
        super().__init__("simulated", 0, Path())
        self._simulation = simulation
        self.there: dict[str, bytes] = {}

    def write_state(self, pieces: Iterable[Any]) -> None:
        self._simulation.step()
        self.there.pop("state", None)
        self._write("state", pieces)

    def _write(self, suffix: str, pieces: Iterable[Any]) -> None:
        data = b""
        for piece in pieces:
            self._simulation.step()
            data += bytes(piece)
        self._simulation.step()
        self.there[suffix] = data
        self._simulation.version += 1

    def read_state(self) -> npt.NDArray[np.uint8]:
        self._simulation.step()
        return np.frombuffer(self.there["state"], np.uint8)

    def take_given(self) -> npt.NDArray[np.uint8]:
        self._simulation.step()
        return np.frombuffer(self.there.pop("given"), np.uint8)

    def read_copy(self, number: int) -> npt.NDArray[np.uint8]:
        self._simulation.step()
        return np.frombuffer(self.there[f"copy-{number}"], np.uint8)

    def drop_copies(self) -> None:
        for name in [name for name in self.there if name.startswith("copy-")]:
            self._simulation.step()
            self.there.pop(name, None)

    def take_fill(self, number: int) -> npt.NDArray[np.uint8] | None:
        try:
            return self._take(f"fill-{number}")
        except KeyError:
            return None

    def _take(self, suffix: str) -> npt.NDArray[np.uint8]:
        self._simulation.step()
        found = self.there[suffix]
        self._simulation.step()
        self.there.pop(suffix, None)
        return np.frombuffer(found, np.uint8)


class Silent:
    """A doorbell that nobody needs."""

    def ring(self) -> None:
        pass

    def wait(self, seconds: float) -> None:
        del seconds


def stay(simulation: Interleaving, actor: Actor, runnable: list[Actor]) -> Actor:
    """Run on until it waits."""
    del simulation
    return actor if actor in runnable else runnable[0]


def take_turns(simulation: Interleaving, actor: Actor, runnable: list[Actor]) -> Actor:
    """A step each."""
    places = simulation.actors
    after = [*places[places.index(actor) + 1 :], *places]
    return next(a for a in after if a in runnable)


def interrupt(at: Sequence[int], policy: Policy = stay) -> Policy:
    """Run on until it waits, except that another one takes over at these steps of the whole run."""

    def chosen(simulation: Interleaving, actor: Actor, runnable: list[Actor]) -> Actor:
        if simulation.total_steps in at:
            return take_turns(simulation, actor, runnable)
        return policy(simulation, actor, runnable)

    return chosen


def give_way(at: int, name: str) -> Policy:
    """Run on until it waits, except that at this step of the whole run the one of this name runs on until it waits."""

    def chosen(simulation: Interleaving, actor: Actor, runnable: list[Actor]) -> Actor:
        others = [one for one in runnable if one.name == name]
        if simulation.total_steps == at and others:
            return others[-1]
        return stay(simulation, actor, runnable)

    return chosen


def at_random(seed: int) -> Policy:
    """Anybody, more or less often."""
    dice = random.Random(seed)
    often = dice.choice([0.02, 0.1, 0.3, 0.7])

    def chosen(simulation: Interleaving, actor: Actor, runnable: list[Actor]) -> Actor:
        del simulation
        return actor if actor in runnable and dice.random() > often else dice.choice(runnable)

    return chosen
