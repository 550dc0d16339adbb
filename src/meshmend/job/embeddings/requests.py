"""What is asked and answered over a connection between workers that read rows from each other.

    asked      │ version │ slices │ places in all │ slice … │ places of each; WHOLE: all │ place …          │
    answered   │ version of the holder │ for each slice 1 where its rows follow │ rows, slice after slice   │

Both sides know how large an answer is: the tables have the same shape everywhere.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate, pairwise
from math import inf
from typing import Protocol

import numpy as np

from meshmend.base.clocks import ROWS_LOOK
from meshmend.job.embeddings.shape import Floats, Ids

HEAD = struct.Struct("<qii")
VERSION = struct.Struct("<q")
WHOLE = -1
MOST = 1 << 20
"""Places that are asked for at once."""
Wanted = Mapping[int, Ids | slice]
"""By slice: the places of rows in it, or all of it."""
EVERY = slice(None)


class Gone(ConnectionError):
    """The other side has closed the connection, or says what nobody of this run would say."""


class Copies(Protocol):
    """What answers: copies of slices, each as it is before a step."""

    def read(self, number: int, version: int, places: Ids | slice) -> Floats | None:
        """These rows of a slice; None where they are not here as they are before that step."""
        ...


def portions(wanted: Wanted) -> Iterator[dict[int, Ids | slice]]:
    """The same in requests that are not too large."""
    part: dict[int, Ids | slice] = {}
    size = 0
    for number, places in wanted.items():
        here = 0 if isinstance(places, slice) else len(places)
        if part and size + here > MOST:
            yield part
            part, size = {}, 0
        part[number], size = places, size + here
    if part:
        yield part


def request(version: int, wanted: Wanted) -> bytes:
    """The bytes that ask for these rows."""
    counts = [WHOLE if isinstance(places, slice) else len(places) for places in wanted.values()]
    listed = [np.asarray(places, np.int32) for places in wanted.values() if not isinstance(places, slice)]
    every = np.concatenate(listed) if listed else np.zeros(0, np.int32)
    numbers = np.array([*wanted, *counts], np.int32)
    return HEAD.pack(version, len(wanted), len(every)) + numbers.tobytes() + every.tobytes()


def asked(receive: Callable[[int], bytes], sizes: Ids) -> tuple[int, dict[int, Ids | slice]]:
    """Read what is asked for: the version, and places in slices of these sizes."""
    version, slices, places = HEAD.unpack(receive(HEAD.size))
    if not (0 <= slices <= len(sizes) and 0 <= places <= int(sizes.sum())):
        raise Gone("it asks for more than there is")
    numbers, counts = np.frombuffer(receive(8 * slices), np.int32).reshape(2, -1)
    every = np.frombuffer(receive(4 * places), np.int32).astype(np.int64)
    listed = np.where(counts == WHOLE, 0, counts)
    if listed.sum() != places or (listed < 0).any() or (numbers < 0).any() or (numbers >= len(sizes)).any():
        raise Gone("it asks for what is not there")
    wanted: dict[int, Ids | slice] = {}
    ends = [0, *accumulate(listed.tolist())]
    for number, count, (begin, end) in zip(numbers.tolist(), counts.tolist(), pairwise(ends), strict=True):
        here = every[begin:end]
        if len(here) and (here.min() < 0 or here.max() >= sizes[number]):
            raise Gone("it asks for rows that are not there")
        wanted[number] = EVERY if count == WHOLE else here
    return version, wanted


def answer(copies: Copies, version: int, wanted: Wanted, own: Callable[[], int]) -> bytes:
    """What this worker has of it; its own version is looked at last, so that one that is late is not taken for done."""
    found = [copies.read(number, version, places) for number, places in wanted.items()]
    there = bytes(rows is not None for rows in found)
    return VERSION.pack(own()) + there + b"".join(rows.tobytes() for rows in found if rows is not None)


def answered(receive: Callable[[int], bytes], wanted: Wanted, sizes: Ids, width: int) -> tuple[int, dict[int, Floats]]:
    """Read what has been answered: the version of the holder, and the rows that it has."""
    (version,) = VERSION.unpack(receive(VERSION.size))
    there = receive(len(wanted))
    found = {}
    for (number, places), here in zip(wanted.items(), there, strict=True):
        if here:
            count = int(sizes[number]) if isinstance(places, slice) else len(places)
            found[number] = np.frombuffer(receive(4 * count * width), np.float32).reshape(count, width)
    return version, found


def receiver(
    line: socket.socket, until: float, rest: Callable[[], None] = lambda: None, more: float = 0.0
) -> Callable[[int], bytes]:
    """What receives so many bytes; `TimeoutError` at `until`, on the monotonic clock, with a `rest` now and then.

    As long as something arrives, it waits for `more` seconds more.
    """

    def receive(size: int) -> bytes:
        nonlocal until
        found, have = bytearray(size), 0
        while have < size:
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError("no answer")
            line.settimeout(None if left == inf else min(left, ROWS_LOOK))
            try:
                got = line.recv_into(memoryview(found)[have:])
            except TimeoutError:
                rest()
                continue
            if not got:
                raise Gone("the connection was closed")
            have += got
            until = max(until, time.monotonic() + more)
        return bytes(found)

    return receive
