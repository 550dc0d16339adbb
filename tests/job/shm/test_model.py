"""The handshake under every kill and many interleavings, over the classes of production; and mutants that must fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from meshmend.job.shm.mailbox import CourierSide, WorkerSide
from meshmend.job.shm.marks import put_in
from meshmend.job.shm.memory import SharedMemory
from meshmend.job.shm.records import StateGiven, StateWanted, Where
from meshmend.job.shm.words import Mail, Mailbox
from tests.simulators.interleaving import Deadlock, Policy, at_random, interrupt, stay, take_turns
from tests.simulators.shm import OTHERS, OWN, ROUNDS, Simulation, replace_courier

SEEDS = 400


def play(policy: Policy, **about: Any) -> Simulation:
    """One run; unless its worker is killed or halted, it does all rounds."""
    simulation = Simulation(policy, **about).run()
    if not simulation.worker_dead and simulation.halt_after is None:
        assert simulation.done_by_worker == ROUNDS - 1
        assert simulation.state == simulation.begun + b"%d" % (ROUNDS - 1)
    return simulation


def steps_of(policy: Policy, name: str, **about: Any) -> int:
    return sum(actor.steps for actor in play(policy, **about).actors if actor.name == name)


def explore(seeds: int = SEEDS) -> None:
    """Kill the courier before each of its steps, interrupt at each step, and many seeded schedules with kills."""
    for newcomer in (False, True):
        for step in range(1, steps_of(stay, "courier", newcomer=newcomer) + 1):
            play(stay, kill=("courier", step), newcomer=newcomer)
            play(interrupt([step, step + 7]), newcomer=newcomer)
    for step in range(1, Simulation(stay).run().total_steps, 2):
        play(replace_courier(step))
    for seed in range(seeds):
        name, step = ("courier", "courier", "worker", "listener")[seed % 4], seed * 37 % 300 + 1
        play(at_random(seed), kill=(name, step), newcomer=seed % 3 == 0)


@pytest.mark.parametrize("newcomer", [False, True])
@pytest.mark.parametrize("policy", [stay, take_turns])
def test_a_courier_may_die_between_any_two_accesses(policy: Policy, newcomer: bool) -> None:
    begun = set()
    for step in range(1, steps_of(policy, "courier", newcomer=newcomer) + 1, 1 if policy is stay else 3):
        simulation = play(policy, kill=("courier", step), newcomer=newcomer)
        assert simulation.world == 2
        begun.add(simulation.begun)
    assert begun == ({OTHERS, OWN} if newcomer else {OWN})


@pytest.mark.parametrize("name", ["worker", "listener"])
@pytest.mark.parametrize("policy", [stay, take_turns])
def test_a_worker_may_die_between_any_two_accesses_and_its_courier_ends(policy: Policy, name: str) -> None:
    for step in range(1, steps_of(policy, name) + 1, 1 if policy is stay else 3):
        assert play(policy, kill=(name, step)).worker_dead


def test_another_may_take_over_between_any_two_accesses() -> None:
    for step in range(1, Simulation(stay).run().total_steps):
        play(interrupt([step]))
        play(interrupt([step, step + 11, step + 13]), newcomer=step % 2 == 0)


def test_a_courier_may_be_replaced_while_its_worker_reads() -> None:
    for step in range(1, Simulation(stay).run().total_steps, 2):
        play(replace_courier(step))


@pytest.mark.parametrize("part", range(4))
def test_many_schedules_with_kills(part: int) -> None:
    for seed in range(part * SEEDS, (part + 1) * SEEDS):
        name, step = ("courier", "courier", "worker", "listener")[seed % 4], seed * 37 % 300 + 1
        play(at_random(seed), kill=(name, step), newcomer=seed % 3 == 0)


def test_a_halt_ends_the_worker_at_any_time() -> None:
    for seed in range(200):
        simulation = play(at_random(seed), halt=seed % ROUNDS - 1, kill=("courier", seed % 97 + 1))
        assert simulation.saved or simulation.done_by_worker == ROUNDS - 1


def _number_first(self: Mailbox[Any], words: Any, value: Any) -> None:
    place, body = self.place, value.words()
    words[place] = (words[place] | 1) + 1
    words[place + 1] = len(body)
    for i, word in enumerate(body):
        words[place + 2 + i] = word


def _not_taken_away(self: Mailbox[Any], words: Any, value: Any) -> None:
    place, body = self.place, value.words()
    words[place + 1] = len(body)
    for i, word in enumerate(body):
        words[place + 2 + i] = word
    words[place] = (words[place] | 1) + 1


def _numbers_again(self: Mailbox[Any], words: Any, value: Any) -> None:
    place, body = self.place, value.words()
    words[place] = 1
    words[place + 1] = len(body)
    for i, word in enumerate(body):
        words[place + 2 + i] = word
    words[place] = 2


def _read_once(self: Mailbox[Any], words: Any) -> Mail[Any] | None:
    number = words[self.place]
    if number == 0 or number & 1:
        return None
    body = [words[self.place + 2 + i] for i in range(words[self.place + 1])]
    return Mail(number, self.kind.of(body))


def _any_answer(self: CourierSide) -> bool:
    return self._segment.worker.answered != 0


def _any_state(self: CourierSide) -> Any:
    mail = self._segment.worker.state_given
    return None if mail is None else (mail.body.round, self._segment.files.read_state())


def _state_last(self: WorkerSide, request: Any, round: int, pieces: Any) -> None:
    self._segment.worker.state_given = StateGiven(request.number, round)
    self._segment.files.write_state(pieces)


def _given_first(self: CourierSide, pieces: Any) -> None:
    self._segment.courier.given = True
    self._segment.courier.active = True
    self._segment.files.put_given(pieces)


def _kept(self: CourierSide, round: int) -> None:
    self._segment.courier.state_wanted = StateWanted(round)
    mail = self._segment.courier.state_wanted
    assert mail is not None
    self._request = mail.number


def _any_outcome(self: CourierSide) -> Any:
    mail = self._segment.worker.device_done
    return None if mail is None else mail.body.outcome


def _not_placed(self: CourierSide, round: int, where: Where) -> None:
    if where is not Where.BUFFER:
        put_in(self._segment.courier, round, where)


def _one_word(self: CourierSide, round: int, where: Where) -> None:
    put_in(self._segment.courier, round, where)
    put_in(self._segment.courier, round + 1, Where.BUFFER)


def _unmarked(self: CourierSide, round: int) -> None:
    del self, round


def _done_first(self: SharedMemory, value: int) -> None:
    record = self._segment.courier
    record.done = value
    record.done_world = record.world
    record.done_shrink = record.shrink


def _done_before_made(self: SharedMemory, round: int, group: tuple[int, int]) -> None:
    self.done = round
    even, odd = self.stamps
    self.stamps = (even, (round, *group)) if round % 2 else ((round, *group), odd)


def _one_stamp(self: SharedMemory, round: int, group: tuple[int, int]) -> None:
    self.stamps = ((round, *group), (round, *group))
    self.done = round


MUTANTS: list[tuple[type, str, Callable[..., Any] | property]] = [
    (Mailbox, "store", _number_first),
    (Mailbox, "store", _not_taken_away),
    (Mailbox, "store", _numbers_again),
    (Mailbox, "load", _read_once),
    (CourierSide, "is_answered", _any_answer),
    (CourierSide, "state", _any_state),
    (CourierSide, "give", _given_first),
    (CourierSide, "ask_state", _kept),
    (CourierSide, "device_outcome", _any_outcome),
    (CourierSide, "place_total", _not_placed),
    (CourierSide, "place_total", _one_word),
    (CourierSide, "begin_total", _unmarked),
    (WorkerSide, "give_state", _state_last),
    (SharedMemory, "complete", _done_before_made),
    (SharedMemory, "complete", _one_stamp),
    (SharedMemory, "done", property(lambda self: self._segment.courier.done, _done_first)),
]


@pytest.mark.parametrize(("kind", "name", "mutant"), MUTANTS, ids=lambda value: getattr(value, "__name__", "done"))
def test_writes_in_another_order_are_found_out(
    kind: type, name: str, mutant: Callable[..., Any] | property, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, name, mutant)
    with pytest.raises((AssertionError, Deadlock, KeyError, TypeError, ValueError)):
        explore()
