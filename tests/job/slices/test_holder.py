"""Sharded updates with real numbers: Adam on exact sums, through kills, bit for bit the weights of one worker alone."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from meshmend.errors import JobError
from meshmend.job.protocol import NEVER, Evicted, Failure
from meshmend.job.reduction.exact import Exact
from meshmend.job.slices.holder import Copy, Holder
from meshmend.job.slices.optimizers import of_slices
from tests.job.sharding.test_member import later, points
from tests.simulators.mpi import Kill
from tests.simulators.sharded import ShardedWorld, Worker
from tests.simulators.ulfm import mix

LEAVES = [3000, 5, 1500, 0, 1]
LANES, ROUNDS, SLICES = 5, 5, 4
Floats = npt.NDArray[np.float32]


def init(weights: Floats) -> dict[str, Any]:
    return {"m": np.zeros_like(weights), "v": np.zeros_like(weights), "count": np.zeros((), np.int64)}


def update(weights: Floats, gradients: Floats, state: dict[str, Any]) -> tuple[Floats, dict[str, Any]]:
    count = state["count"] + 1
    m = np.float32(0.9) * state["m"] + np.float32(0.1) * gradients
    v = np.float32(0.999) * state["v"] + np.float32(0.001) * gradients * gradients
    step = m / np.float32(1 - 0.9**count) / (np.sqrt(v / np.float32(1 - 0.999**count)) + np.float32(1e-8))
    return weights - np.float32(0.01) * step, {"m": m, "v": v, "count": np.asarray(count)}


ADAM = of_slices(init, update)


def start() -> Floats:
    return np.random.default_rng(3).standard_normal(sum(LEAVES)).astype(np.float32)


def gradient(weights: Floats, step: int, lane: int) -> Floats:
    """It depends on all weights, and is larger in every step: grids must move up, and rounds are done again."""
    dice = np.random.default_rng([step, lane])
    sized = dice.standard_normal(len(weights)) * 10.0 ** (3 * step)
    return (sized + weights[::-1] + np.roll(weights, lane)).astype(np.float32)


def alone(rounds: int) -> tuple[Floats, int]:
    """An unsharded loop: the weights after so many rounds, and how many of them were steps."""
    weights, exact, step = start(), Exact(LEAVES, LANES), 0
    state = init(weights)
    for _ in range(rounds):
        wire = exact.wire()
        for lane in range(LANES):
            exact.add(wire, gradient(weights, step, lane))
        outcome = exact.finish(wire)
        if outcome.sums is not None:
            weights, state = update(weights, outcome.sums, state)
            step += 1
    return weights, step


class NumpyWorker(Worker):
    """The simulator's worker, with a `Holder`."""

    def __post_init__(self) -> None:
        self.holder = Holder(LEAVES, start(), ADAM, LANES, SLICES)
        self.wire = self.holder.exact.wire()
        self.lanes: set[int] = set()
        self.judged, self.step = NEVER, 0

    def hold(self, slices: Iterable[int]) -> None:
        self.holder.hold(frozenset(slices))

    def work(self, round: int, lanes: Iterable[int], *, leaving: bool) -> None:
        wanted = set() if leaving else set(lanes)
        if self.part_of != round or not self.lanes <= wanted:
            self.wire, self.lanes, self.part_of = self.holder.exact.wire(), set(), round
        self.footer = mix(hash(self.holder.weights.tobytes()), hash(self.holder.exact.state().tobytes()))
        for lane in sorted(wanted - self.lanes):
            self.holder.exact.add(self.wire, gradient(self.holder.weights, self.step, lane))
            self.lanes.add(lane)

    def scatter(self, round: int, members: Sequence[Worker], slices: Iterable[int]) -> list[int]:
        parts = [member for member in members if isinstance(member, NumpyWorker) and member.part_of == round]
        self.holder.scatter(round, [part.wire for part in parts], frozenset(slices))
        return [sum(lane in part.lanes for part in parts) for lane in range(LANES)]

    def judge(self, round: int) -> None:
        """A round that something stood against was no step."""
        self.holder.update(round, ())
        if round > self.judged:
            self.judged, self.step = round, self.step + (self.holder.judge() is None)

    def update(self, round: int, number: int) -> None:
        self.holder.update(round, [number])

    def digest(self, number: int) -> tuple[int, int]:
        return self.holder.digests(number)

    def agree(self, digests: dict[int, tuple[int, int]]) -> None:
        self.holder.agree(digests)

    def take(self, number: int, other: Worker) -> int:
        assert isinstance(other, NumpyWorker)
        self.holder.receive(number, other.holder.of(number))
        return self.holder.expected[number]

    def fill(self, number: int, other: Worker) -> None:
        assert isinstance(other, NumpyWorker)
        self.holder.fill(number, other.holder.copies[number])

    def cargo(self) -> Any:
        return self.holder.given(), self.judged, self.step

    def adopt(self, cargo: Any) -> None:
        given, self.judged, self.step = cargo
        self.holder.adopt(*given)


def trained(members: int, rounds: int = ROUNDS, **how: Any) -> ShardedWorld:
    return ShardedWorld(members, rounds, slices=SLICES, lanes=LANES, worker=NumpyWorker, **how).run()


def assert_as_alone(world: ShardedWorld) -> int:
    """Those that are left have the bits of the unsharded loop; how many there are."""
    weights, steps = alone(world.rounds)
    ended = [m.worker for m in world.members if m.status == "ended" and m.memory.active]
    for worker in ended:
        assert isinstance(worker, NumpyWorker)
        assert worker.step == steps
        assert worker.holder.weights.tobytes() == weights.tobytes()
    return len(ended)


def test_the_gradients_of_this_test_make_grids_move_up() -> None:
    assert 0 < alone(ROUNDS)[1] < ROUNDS


@pytest.mark.parametrize("buddies", [0, 1, 2])
@pytest.mark.parametrize("members", [1, 2, 4])
def test_sharded_updates_are_the_unsharded_ones_bit_for_bit(members: int, buddies: int) -> None:
    assert assert_as_alone(trained(members, buddies=buddies)) == members


@pytest.mark.parametrize("buddies", [1, 2])
def test_single_kills_change_no_bit(buddies: int) -> None:
    for seed, kill in enumerate(points(3, buddies, 0)[::6]):
        assert assert_as_alone(trained(3, buddies=buddies, kills=[kill], dice=random.Random(seed))) >= 2


def test_pairs_of_kills_change_no_bit() -> None:
    for seed in range(8):
        dice = random.Random(seed)
        first = dice.choice(points(4, 2, 0))
        second = dice.choice(later(4, 2, first))
        assert assert_as_alone(trained(4, buddies=2, kills=[first, second], dice=dice)) >= 2


def test_a_newcomer_is_given_weights_grid_and_slices() -> None:
    world = trained(3, rounds=8, spares=1, kills=[Kill(1, 14, entered=True)])
    assert assert_as_alone(world) == 3
    newcomer = world.members[3].worker
    assert isinstance(newcomer, NumpyWorker) and newcomer.holder.copies


def held(slices: int = 2) -> Holder:
    holder = Holder([3000], np.ones(3000, np.float32), ADAM, 1, slices)
    holder.hold(range(slices))
    return holder


def summed(holder: Holder, round: int) -> None:
    wire = holder.exact.wire()
    holder.exact.add(wire, np.full(3000, 0.5, np.float32))
    holder.scatter(round, [wire], range(2))


def test_an_update_is_made_once_in_a_round() -> None:
    holder = held()
    for round in range(3):
        summed(holder, round)
        holder.update(round, [0, 1])
        before = holder.weights.tobytes()
        holder.update(round, [0, 1])
        assert holder.weights.tobytes() == before
    assert holder.copies[0].state["count"] == 2  # in the first round the grid was not known yet


def test_an_update_of_another_round_is_refused() -> None:
    holder = held()
    summed(holder, 1)
    with pytest.raises(JobError):
        holder.update(1, [0])  # the copy is of the round before the first
    summed(holder, 0)
    holder.update(0, [0, 1])
    with pytest.raises(JobError):
        holder.update(1, [0])  # these are no totals of round 1


@pytest.mark.parametrize("what", ["weights", "moments"])
def test_a_flipped_bit_is_found_before_the_next_update(what: str) -> None:
    holder = held()
    for round in range(2):
        summed(holder, round)
        holder.update(round, [0, 1])
        holder.agree({number: holder.digests(number) for number in range(2)})
    summed(holder, 2)
    damaged = holder.weights if what == "weights" else holder.copies[0].state["v"]
    damaged.view(np.int32)[7] ^= 1 << 20
    with pytest.raises(Evicted):
        holder.update(2, [0, 1])


def test_weights_that_were_damaged_on_their_way_are_refused() -> None:
    giver, taker = held(), held()
    giver.agree({number: giver.digests(number) for number in range(2)})
    taker.agree({number: giver.digests(number) for number in range(2)})
    taker.receive(1, giver.of(1))
    giver.of(1)[5] += 1
    with pytest.raises(Failure):
        taker.receive(1, giver.of(1))


def test_a_copy_that_is_not_there_cannot_be_made_up_later() -> None:
    holder = held()
    summed(holder, 0)
    holder.update(0, [0, 1])
    holder.hold([1])
    with pytest.raises(JobError):
        holder.hold([0, 1])
    holder.fill(0, Copy(init(np.ones(1024, np.float32)), version=0))
    holder.hold([0, 1])


@pytest.mark.parametrize("weights", [np.ones(3), np.ones((1, 4), np.float32), np.ones(5, np.float32)])
def test_weights_of_another_shape_or_type_are_refused(weights: npt.NDArray[Any]) -> None:
    with pytest.raises(JobError):
        Holder([4], weights, ADAM, 1)


def test_an_optimizer_that_gives_other_shapes_is_refused() -> None:
    holder = Holder([4], np.ones(4, np.float32), of_slices(init, lambda weights, _, state: (weights[:2], state)), 1)
    holder.hold([0])
    for round in range(2):
        wire = holder.exact.wire()
        holder.exact.add(wire, np.ones(4, np.float32))
        holder.scatter(round, [wire], [0])
        if round == 0:
            holder.update(round, [0])
    with pytest.raises(JobError):
        holder.update(1, [0])
