"""Protocols that are wrong in one place: the simulator must find out, or it would prove nothing about the right one."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any
from unittest.mock import patch

import pytest

from meshmend.job.protocol import NEVER, Divergence
from meshmend.job.sharding import copies, member, plan, recovery
from tests.job.sharding.test_member import ROUNDS, assert_right, points, random_world
from tests.simulators.sharded import Run, ShardedWorld, Worker

MODULES = (plan, copies, recovery, member)
"""In the order in which they import each other."""

PREPARE = "    yield Prepare(current, state.lanes, plan.fills)\n"
COUNT = "    state.held |= {fill.slice for fill in plan.fills_to(state.rank)}\n"
MUTANTS = {
    "it commits before the meeting": (
        member, "        yield Meet(current)\n        state.met = state.totals",
        "        state.met = state.totals\n        yield Meet(current)",
    ),
    "it does not meet": (member, "        yield Meet(current)\n", ""),
    "it says that the round is decided when it has updated": (
        member, "        state.met = state.totals\n",
        "        yield Update(current.number, state.held)\n        state.met = state.totals\n",
    ),
    "buddies do not take totals": (
        member, "yield Scatter(current, state.held,",
        "yield Scatter(current, frozenset(n for n in state.held if plan.takers.holders[n][0] == state.rank),",
    ),
    "who was filled does not take the total of that round": (
        member, "yield Scatter(current, state.held,",
        "yield Scatter(current, state.held - {f.slice for f in plan.fills},",
    ),
    "it fills nobody": (plan, "if sources and received[target] < most", "if False"),
    "it counts a copy before it is there": (member, f"{PREPARE}{COUNT}", f"{COUNT}{PREPARE}"),
    "it drops copies before the others have theirs": (
        plan, "wanted[number] if having.issuperset(wanted[number]) else takers[-1]", "wanted[number]",
    ),
    "buddies do not answer for the dead": (
        recovery, "tuple(holders[0] if holders else state.rank for holders in holdings.holders)",
        "tuple(ranks[0] for ranks in placed(len(holdings.holders), range(9), 0))",
    ),
    "copies are not compared": (copies, "    if len(set(digests.values())) <= 1:", "    if True:"),
    "those that were left out take part again": (recovery, "state.came < newest", "False"),
    "a decided round is done again": (
        recovery, "any(records[position].done < latest[0] for position in active)", "False",
    ),
    "a decided round is finished without its updates": (
        recovery, "    if state.active:\n        yield Update(number, state.held)\n",
        "    if state.active and behind:\n        yield Update(number - 1, state.held)\n",
    ),
    "newcomers hold what the member had whose weights they took": (
        recovery, "state.done, state.met, state.held = latest[0], latest, frozenset()",
        "state.done, state.met, state.held = latest[0], latest, frozenset({0})",
    ),
    "norms are not measured again": (
        recovery, "    for stage in range(sharding.measures):", "    for stage in range(sharding.measures * behind):",
    ),
    "it goes on without a slice": (recovery, "if found.lost and not all(", "if False and not all("),
    "it asks for a checkpoint at every death": (recovery, "if found.lost and not all(", "if not all("),
}  # fmt: skip


class UnkeyedWorker(Worker):
    """Makes an update as often as it is told to."""

    def update(self, round: int, number: int) -> None:
        self.version[number] = round - 1
        super().update(round, number)


class HastyWorker(Worker):
    """Drops its part as soon as its own totals are there."""

    def added(self) -> None:
        self.part, self.part_of = {}, NEVER


class ForgetfulWorker(Worker):
    """Measures again what it has updated."""

    def measure(self, round: int, stage: int, slices: Iterable[int]) -> dict[int, int]:
        self.said = {}
        return super().measure(round, stage, slices)


def mutated(where: ModuleType, old: str, new: str) -> Run:
    """`run_sharded_member` with something else in the source of a module."""
    with patch.dict(sys.modules):
        for module in MODULES:
            made = ModuleType(module.__name__)
            source = inspect.getsource(module)
            if module is where:
                assert source.count(old) == 1, "this place of the protocol has changed: change the mutant"
                source = source.replace(old, new)
                source = source.replace("import Meet, Prepare", "import Meet, Update, Prepare")
            sys.modules[module.__name__] = made
            exec(compile(source, f"<mutant of {module.__name__}>", "exec"), vars(made))
        run: Run = vars(importlib.import_module(member.__name__))["run_sharded_member"]
    return run


def worlds(seeds: int, **changed: Any) -> Iterator[ShardedWorld]:
    """A wrong update, every fifth single kill, and random ones."""
    yield ShardedWorld(4, ROUNDS, buddies=2, flips={0: ("update", 1)}, **changed)
    for kill in points(4, 1, 0)[::5]:
        yield ShardedWorld(4, ROUNDS, kills=[kill], **changed)
    for seed in range(seeds):
        yield random_world(seed, **changed)


def is_rejected(seeds: int = 300, **changed: Any) -> bool:
    """Whether any of them shows that something is wrong."""
    try:
        for world in worlds(seeds, **changed):
            assert_right(world.run())
    except (AssertionError, Divergence, LookupError, StopIteration, TypeError):
        return True
    return False


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_found(name: str) -> None:
    assert is_rejected(run=mutated(*MUTANTS[name]))


@pytest.mark.parametrize("worker", [UnkeyedWorker, HastyWorker, ForgetfulWorker])
def test_workers_that_are_wrong_are_found(worker: type[Worker]) -> None:
    assert is_rejected(worker=worker)


def test_nothing_is_wrong_with_the_protocol_as_it_is() -> None:
    """The same way round, so that what rejects mutants is not the way in which they are made."""
    assert not is_rejected(30, run=mutated(member, "from __future__ import annotations", ""))
