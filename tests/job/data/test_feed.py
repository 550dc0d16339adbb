"""Which lanes are read ahead, that a death costs one cold lane, and that nobody sees who read what."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshmend as mm
from meshmend.errors import JobError
from meshmend.job.data.cache_file import CacheHome
from meshmend.job.data.feed import Feed, forecast, order_of
from meshmend.job.data.lanes import Lanes
from meshmend.job.protocol.agreement import divide, hand_over

SIZE, BATCH, LANES = 50, 24, 6


def noisy(sample: Any, rng: np.random.Generator) -> Any:
    return sample[0] + rng.normal(size=3), sample[1]


def data(ahead: int, *, cache: bool = False) -> mm.data.Data:
    x = np.arange(3 * SIZE, dtype=np.float64).reshape(SIZE, 3)
    made = mm.data.arrays(x, np.arange(SIZE)).map(lambda sample: (sample[0] * 2, sample[1]))
    made = made.cache("1MB") if cache else made
    return made.map(noisy).map_lane(lambda lane, rng: (lane[0] + rng.normal(), lane[1])).read_ahead(ahead, 2)


def feed(source: mm.data.Data, mine: Sequence[int]) -> Feed:
    lanes = Lanes(SIZE, BATCH, LANES, 3, **order_of(source))
    return Feed(source, lanes, lambda: mine, CacheHome())


def bits(lane: Any) -> bytes:
    return b"".join(part.tobytes() for part in lane)


EXPECTED = {
    (step, lane): bits(feed(data(0), range(LANES)).lane(step, lane)) for step in range(6) for lane in range(LANES)
}


@given(st.integers(1, 5), st.booleans(), st.data())
@settings(max_examples=25, deadline=None)
def test_a_lane_has_the_same_bits_for_any_workers_and_any_deaths(
    workers: int, cache: bool, draw: st.DataObject
) -> None:
    """Workers that read ahead and die at any lane, as the couriers divide lanes among the others."""
    alive = list(range(workers))
    mine: dict[int, Sequence[int]] = {rank: divide(LANES, workers, rank) for rank in alive}
    feeds = {rank: Feed(
        data(draw.draw(st.integers(0, 7)), cache=cache), Lanes(SIZE, BATCH, LANES, 3), lambda rank=rank: mine[rank],  # type: ignore[misc]
        CacheHome(),
    ) for rank in alive}  # fmt: skip
    for step in range(4):
        mine = {rank: divide(LANES, len(alive), turn) for turn, rank in enumerate(alive)}
        counted: list[int] = []
        victim = draw.draw(st.sampled_from(alive)) if len(alive) > 1 and draw.draw(st.booleans()) else None
        dies_after = draw.draw(st.integers(0, 2))
        for rank in alive:
            for lane in mine[rank][: dies_after if rank == victim else None]:
                assert bits(feeds[rank].lane(step, lane)) == EXPECTED[step, lane]
                counted += [lane] if rank != victim else []
        if victim is not None:
            alive.remove(victim)
            feeds[victim].close()
            more = hand_over(LANES, [mine[rank] for rank in alive])
            for rank, extra in zip(alive, more, strict=True):
                mine[rank] = [*mine[rank], *extra]
                for lane in extra:
                    assert bits(feeds[rank].lane(step, lane)) == EXPECTED[step, lane]
                    counted.append(lane)
        assert sorted(counted) == [*range(LANES)]
    for one in feeds.values():
        one.close()


@pytest.mark.parametrize(
    ("lane", "mine", "expected"),
    [
        (1, (0, 1, 2), [(5, 2), (6, 0), (6, 1), (6, 2), (7, 0)]),
        (2, (0, 1, 2), [(6, 0), (6, 1), (6, 2), (7, 0), (7, 1)]),
        (9, (3, 4), [(6, 3), (6, 4), (7, 3), (7, 4), (8, 3)]),
        (0, (), []),
    ],
)
def test_the_forecast_is_the_same_lanes_again(lane: int, mine: tuple[int, ...], expected: list[Any]) -> None:
    assert [*islice(forecast(5, lane, lambda: mine), 5)] == expected


class Recorded:
    """Rows that note in which thread they were read, and wait for each other."""

    def __init__(self) -> None:
        self.main: list[int] = []
        self.ahead: list[int] = []
        self.read = threading.Condition()

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, number: int) -> int:
        with self.read:
            own = threading.current_thread().name.startswith("meshmend-read")
            (self.ahead if own else self.main).append(number)
            self.read.notify_all()
        return number

    def wait(self, numbers: set[int]) -> None:
        with self.read:
            assert self.read.wait_for(lambda: numbers <= {*self.ahead, *self.main}, timeout=30)


def test_a_hand_over_costs_at_most_one_cold_lane() -> None:
    """The first lane of the dead is read when it is asked for; while it is computed, the others are read."""
    source, mine = Recorded(), [0, 1]
    lanes = Lanes(SIZE, BATCH, LANES, 3)
    one = Feed(mm.data.rows(source).read_ahead(4, threads=1), lanes, lambda: mine, CacheHome())
    one.expect(0)

    def forecast_is_read(*places: tuple[int, int]) -> None:
        source.wait({int(number) for place in places for number in lanes.ids(*place)})

    forecast_is_read((0, 0), (0, 1), (1, 0), (1, 1))
    one.lane(0, 0)
    one.lane(0, 1)
    mine += [4, 5]  # another worker has died, and these were its lanes
    known = {*source.ahead, *source.main}
    cold = [place for place in [(0, 4), (0, 5)] if not {*lanes.ids(*place).tolist()} <= known]
    assert cold == [(0, 4), (0, 5)]
    one.lane(0, 4)
    forecast_is_read((0, 5))  # by itself: nobody has asked for it yet
    before = len(source.main)
    one.lane(0, 5)
    assert len(source.main) == before
    one.close()


def test_an_error_while_reading_ahead_is_raised_where_the_lane_is_asked_for() -> None:
    def fail(sample: int) -> int:
        raise RuntimeError(f"no {sample}")

    one = Feed(mm.data.rows(range(SIZE)).map(fail), Lanes(SIZE, BATCH, LANES), lambda: (0, 1), CacheHome())
    one.expect(0)
    with pytest.raises(RuntimeError, match="no"):
        one.lane(0, 0)
    one.close()


def test_the_wait_for_input_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("meshmend.job.data.feed.time.perf_counter", lambda: now[0])

    class Slow:
        def __len__(self) -> int:
            return SIZE

        def __getitem__(self, ids: Any) -> Any:
            now[0] += 0.5
            return ids

    one = Feed(Slow(), Lanes(SIZE, BATCH, LANES), lambda: (0, 1), CacheHome())
    one.lane(0, 0)
    one.lane(0, 1)
    assert (one.stall(), one.stall()) == (1.0, 0.0)


def test_a_job_trains_to_the_same_bits_with_and_without_a_cache_and_reading_ahead() -> None:
    def weights(source: Any) -> bytes:
        with mm.Job(source, batch=BATCH, lanes=LANES, reduction="exact", seed=3) as job:
            total = job.share(np.zeros(3, np.float32))
            for _ in job.steps(5):
                total = total + job.sum(lambda lane: lane[0].astype(np.float32).sum(0))
                job.commit(total)
            count = job.evaluate(source, lambda lane: len(lane[1]))
            assert count == SIZE
        return total.tobytes()

    assert len({weights(data(0)), weights(data(5)), weights(data(3, cache=True))}) == 1


def test_too_few_threads_or_lanes_are_one_sentence() -> None:
    with pytest.raises(JobError):
        mm.data.arrays(np.ones(4)).read_ahead(-1)
    with pytest.raises(JobError):
        mm.data.arrays(np.ones(4)).read_ahead(2, threads=0)
