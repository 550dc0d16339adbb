"""`python -m tests.run.many_worlds`: what a launcher has kept of twenty worlds that are gone, printed as JSON."""

from __future__ import annotations

import gc
import json
import os
import threading
from collections import Counter
from typing import Any, cast
from unittest.mock import patch

from meshmend.run.agent import messages
from meshmend.run.clusters.hosts import Host
from meshmend.run.launcher import Launcher
from meshmend.run.spec import RunSpec
from meshmend.run.supervisor import actions
from meshmend.run.supervisor import messages as m
from tests.processes import wait_for

WORLDS = 20


class Deaf:
    """An agent that does nothing."""

    closed = False

    def act(self, command: messages.Command) -> None: ...

    def look(self) -> list[Any]:
        return []

    def output(self) -> list[Any]:
        return []


def worlds(launcher: Launcher, begin: int, end: int) -> None:
    """Open worlds one after another; every second one ends by itself, and the others are killed."""
    for number in range(begin, end):
        launcher._act(actions.OpenWorld(number, {"a": {0: 7}, "b": {2: 9}}), began=5)
        launcher._act(actions.EnterWorld(number, fresh=False, reason=m.MpirunLost(), ranks=(0, 2)), began=5)
        world = launcher._worlds[number]
        assert world is not None, "mpirun has started"
        if number % 2:
            world.process.kill()
            world.process.wait()
        launcher._observe()
        launcher._act(actions.KillWorld(number), began=5)


def kept(threads: int) -> tuple[Counter[str], int, int]:
    """What there is now, when all threads have ended that will: objects by type, threads and open files."""
    wait_for(lambda: threading.active_count() <= threads)
    gc.collect()
    objects = Counter(type(one).__name__ for one in gc.get_objects())
    return objects, threading.active_count(), len(os.listdir("/proc/self/fd"))


def main() -> None:
    """Print what a launcher keeps of each world, at least."""
    spec = RunSpec(run="made", script=["train.py"], workers=3, hosts=[Host("a", 2), Host("b", 1)])
    launcher = Launcher(spec)
    launcher.pool.agents = cast(Any, {"a": Deaf(), "b": Deaf()})
    module = "meshmend.run.world.world"
    threads = threading.active_count() + 1  # that of the output stays
    with (
        patch(f"{module}.mpirun_line", lambda *_, **__: ["sleep", "100"]),
        patch(f"{module}.world_folder", lambda _, world: spec.folder / f"world-{world}"),
    ):
        worlds(launcher, 0, 5)
        kept(threads)  # fills the caches that measuring needs itself
        worlds(launcher, 5, 10)
        before = kept(threads)
        worlds(launcher, 10, 10 + WORLDS)
        after = kept(threads)
    more = {kind: count for kind, count in (after[0] - before[0]).items() if count >= WORLDS}
    print(json.dumps({"objects": more, "threads": after[1] - before[1], "files": after[2] - before[2]}))


if __name__ == "__main__":
    main()
