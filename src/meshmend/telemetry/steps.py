"""Many ordinary lines of the ledger as one: a run of steps that one worker committed in one epoch, with the same lanes.

    Committed 1000, Committed 1001, … Committed 1999      170 bytes each
    Steps 1000 to 1999                                     18 bytes for each of them

The proof loses nothing: the digest after every step is kept, and all of them share the epoch and the assignment of
lanes to workers. Times are kept to the microsecond, metrics in single precision, and how long the worker
waited for input to 5 %, in a byte. Anything unusual (a skipped step, a step in which lanes were handed over) stays
a separate line.

The columns are numbers of fixed size, byte after byte (all first bytes, all second ones …), so that what hardly changes
becomes small in zlib; and base64, so that a line stays a line.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

import numpy as np
import numpy.typing as npt

from meshmend.base.schema import Range, Rule
from meshmend.errors import FormatError
from meshmend.telemetry.types import By, Committed, Event, Rank

MOST = 1024
"""Steps in one line."""
METRICS = 64
"""Metrics that are gathered; lines with more stay as they are."""
DIGEST = re.compile("[0-9a-f]{12}")
TICK = 1e-6
TIMES, DIGESTS, VALUES = np.dtype("<i8"), np.dtype("<u8"), np.dtype("<f4")

Names = Annotated[list[str], Rule("a few names", lambda names: len({*names}) == len(names) <= METRICS)]
Times = npt.NDArray[np.float64]
Digests = npt.NDArray[np.uint64]
Values = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class Steps(Event):
    """Worker: it has committed these steps, one after another; `time` is that of the first."""

    omitted = ("more",)
    rank: Rank
    step: Annotated[int, Range(0, 1 << 53)]
    """The first of them."""
    count: Annotated[int, Range(1, MOST)]
    by: By
    metrics: Names
    """The names of the metrics that each step has."""
    columns: str
    """Times, digests and metrics."""
    stalls: str = ""
    """A byte for each step: how long the worker waited for input. A separate field, which older versions ignore."""
    more: list[By] = field(default_factory=list)
    """As `by`, for the sums of each step after its first one."""
    times: Times = field(init=False, repr=False)
    digests: Digests = field(init=False, repr=False)
    """The digest of the state after each step."""
    values_of: dict[str, Values] = field(init=False, repr=False)
    """The metrics after each step, by name."""
    waited: Values = field(init=False, repr=False)
    """Seconds that the worker waited for input in each step."""

    def __post_init__(self) -> None:
        ticks, digests, values = _unpacked(self.columns, self.count, len(self.metrics))
        object.__setattr__(self, "times", np.cumsum(ticks) * TICK)
        object.__setattr__(self, "digests", digests)
        object.__setattr__(self, "values_of", dict(zip(self.metrics, values, strict=True)))
        object.__setattr__(self, "waited", _waited(self.stalls, self.count))

    @property
    def end(self) -> int:
        """The step after the last."""
        return self.step + self.count

    @classmethod
    def gather(cls, lines: Sequence[Committed]) -> Self:
        """Make one line of the lines that `follows` allows to be joined."""
        first = lines[0]
        times = np.array([line.time for line in lines])
        digests = np.array([int(line.digest, 16) for line in lines], DIGESTS)
        values = [np.array([line.metrics[name] for line in lines], np.float64) for name in first.metrics]
        return cls.of(first, times, digests, values, np.array([line.stall for line in lines]))

    @classmethod
    def of(
        cls,
        first: Committed,
        times: Times,
        digests: Digests,
        values: Sequence[npt.NDArray[Any]],
        waited: Times | None = None,
    ) -> Self:
        """The steps from this one on, from their columns; metrics are in the order of the first."""
        ticks = np.rint(times / TICK).astype(np.int64)
        ticks[1:] -= ticks[:-1].copy()
        with np.errstate(over="ignore"):
            columns = _packed(ticks, digests, [value.astype(VALUES) for value in values])
        return cls(
            time=first.time, epoch=first.epoch, rank=first.rank, step=first.step, count=len(times), by=first.by,
            metrics=[*first.metrics], columns=columns, stalls="" if waited is None else _stalls(waited),
            more=first.more,
        )  # fmt: skip

    def line_of(self, step: int) -> Committed:
        """One of the lines that this one stands for."""
        at = step - self.step
        return Committed(
            time=float(self.times[at]), epoch=self.epoch, rank=self.rank, step=step, by=self.by,
            digest=f"{int(self.digests[at]):012x}",
            metrics={name: float(values[at]) for name, values in self.values_of.items()}, stall=float(self.waited[at]),
            more=self.more,
        )  # fmt: skip

    def lines(self) -> Iterator[Committed]:
        """All of them."""
        return map(self.line_of, range(self.step, self.end))


def ordinary(event: Committed) -> bool:
    """Whether a line may become part of another."""
    return (
        event.step >= 0
        and DIGEST.fullmatch(event.digest) is not None
        and len(event.metrics) <= METRICS
        and abs(event.time) < 1e12
        and event.stall >= 0
    )


def follows(line: Committed, last: Committed) -> bool:
    """Whether an ordinary line may stand in the same `Steps` as the one before it."""
    return (
        line.step == last.step + 1
        and line.epoch == last.epoch
        and line.rank == last.rank
        and (line.by, line.more) == (last.by, last.more)
        and line.metrics.keys() == last.metrics.keys()
    )


def spread(events: Iterable[Event]) -> Iterator[Event]:
    """The same events, with all lines for themselves."""
    for event in events:
        if isinstance(event, Steps):
            yield from event.lines()
        else:
            yield event


def _packed(ticks: npt.NDArray[np.int64], digests: Digests, values: Sequence[Values]) -> str:
    planes = [_planes(ticks), _planes(digests)[: 6 * len(digests)], *map(_planes, values)]
    return base64.b64encode(zlib.compress(b"".join(planes), 6)).decode()


def _unpacked(text: str, count: int, metrics: int) -> tuple[npt.NDArray[np.int64], Digests, list[Values]]:
    """The columns; never more bytes than they can have, whatever the text would grow to."""
    data = _inflated(text, count * (TIMES.itemsize + 6 + metrics * VALUES.itemsize), count)
    ticks, rest = data[: count * TIMES.itemsize], data[count * TIMES.itemsize :]
    digests, rest = rest[: 6 * count] + bytes(2 * count), rest[6 * count :]
    wide = count * VALUES.itemsize
    values = [_column(rest[begin : begin + wide], VALUES) for begin in range(0, len(rest), wide)]
    return _column(ticks, TIMES), _column(digests, DIGESTS), values


def _inflated(text: str, size: int, count: int) -> bytes:
    try:
        inflater = zlib.decompressobj()
        data = inflater.decompress(base64.b64decode(text, validate=True), size + 1)
        if len(data) != size or not inflater.eof:
            raise ValueError(f"{len(data)} bytes, expected {size}")
    except (ValueError, zlib.error) as error:
        raise FormatError(f"columns of {count} steps cannot be read ({error})") from None
    return data


def _stalls(seconds: Times) -> str:
    """Seconds as bytes: 0 is less than a microsecond, and each further one is 9 % more, up to an hour."""
    if not seconds.any():
        return ""
    with np.errstate(divide="ignore"):
        codes = np.clip(np.rint(8 * np.log2(seconds / TICK) + 1), 0, 255).astype(np.uint8)
    return base64.b64encode(zlib.compress(codes.tobytes(), 6)).decode()


def _waited(text: str, count: int) -> Values:
    if not text:
        return np.zeros(count, VALUES)
    codes = np.frombuffer(_inflated(text, count, count), np.uint8)
    return np.where(codes > 0, TICK * np.exp2((codes.astype(np.float64) - 1) / 8), 0).astype(VALUES)


def _planes(column: npt.NDArray[Any]) -> bytes:
    """All first bytes, then all second ones, …"""
    return np.ascontiguousarray(column).view(np.uint8).reshape(len(column), -1).T.tobytes()


def _column(planes: bytes, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    turned = np.frombuffer(planes, np.uint8).reshape(kind.itemsize, -1).T
    return np.ascontiguousarray(turned).view(kind).reshape(-1)
