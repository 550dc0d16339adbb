"""How a worker reads the rows that others hold: in the memory of its host, or over the network from other hosts.

`Standing` says what became of a question, which decides whether somebody who has no answer waits for one.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Protocol

from meshmend.base.clocks import ROWS_ANSWER
from meshmend.job.embeddings.contacts import Contact, Contacts
from meshmend.job.embeddings.port import Unreachable, connect
from meshmend.job.embeddings.requests import Wanted, answered, portions, receiver, request
from meshmend.job.embeddings.shape import Floats, Ids
from meshmend.job.embeddings.shelf import OtherShelves


class Standing(Enum):
    """How a rank stands to the rows that it was asked for."""

    DONE = 0
    """It has made its last update: what it has not given it does not hold."""
    BEHIND = 1
    """It is still to make its last update."""
    LATE = 2
    """Its host is there, and it does not answer: it is busy, or it hangs, which others find out."""
    SILENT = 3
    """Its host does not answer: it is cut off, or lost."""
    GONE = 4
    """It is dead."""


ALIVE = {Standing.BEHIND, Standing.LATE}
"""Those may have what was asked for, sooner or later."""


Found = tuple[dict[int, Floats], Standing]


class Others(Protocol):
    """Whoever else holds rows."""

    def read(self, rank: int, version: int, wanted: Wanted) -> Found:
        """The rows that a rank has as they are before a step, by slice, and how that rank stands."""
        ...

    def close(self) -> None:
        """The job is over: nobody reads from this worker any more."""
        ...


class SameHost:
    """Workers whose memory this one can map."""

    def __init__(self, shelves: OtherShelves) -> None:
        self._shelves = shelves

    def read(self, rank: int, version: int, wanted: Wanted) -> Found:
        """See `Others`."""
        segment = self._shelves.look(rank)
        if segment is None:
            return {}, Standing.GONE
        rows = {number: self._shelves.read(segment, number, version, places) for number, places in wanted.items()}
        found = {number: one for number, one in rows.items() if one is not None}
        return found, Standing.BEHIND if segment.worker.step < version else Standing.DONE

    def close(self) -> None:
        """See `Others`: the memory stays until the process ends."""


class SeveralHosts:
    """Workers of this host and of others, which are told apart by their addresses."""

    def __init__(
        self, contacts: Contacts, here: Others, sizes: Ids, width: int, rest: Callable[[], None],
        close: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._close = close
        self._contacts, self._here, self._sizes, self._width, self._rest = contacts, here, sizes, width, rest
        self._lines: dict[int, tuple[Contact, socket.socket]] = {}
        self._late: dict[int, tuple[float, Standing]] = {}
        """Ranks that have not answered, until when they are not asked again, and how they stood."""

    def read(self, rank: int, version: int, wanted: Wanted) -> Found:
        """See `Others`."""
        contact = self._contacts.known.get(rank)
        if contact is None:
            return {}, Standing.GONE
        if contact.address == self._contacts.own.address:
            found, standing = self._here.read(rank, version, wanted)
            if standing is not Standing.GONE:
                return found, standing
            # Containers may have an address in common and no memory.
        until, stood = self._late.get(rank, (0.0, Standing.LATE))
        if time.monotonic() < until:
            return {}, stood
        try:
            return self._asked(rank, contact, version, wanted)
        except Unreachable:
            standing = Standing.SILENT
        except ConnectionError:
            standing = Standing.GONE
        except OSError:  # nothing was heard for too long
            standing = Standing.LATE
        self._drop(rank)
        if standing is not Standing.GONE:
            self._late[rank] = time.monotonic() + ROWS_ANSWER, standing
        return {}, standing

    def close(self) -> None:
        """See `Others`."""
        for rank in [*self._lines]:
            self._drop(rank)
        self._close()

    def _asked(self, rank: int, contact: Contact, version: int, wanted: Wanted) -> Found:
        line = self._line(rank, contact)
        found: dict[int, Floats] = {}
        least = version
        for part in portions(wanted):
            until = time.monotonic() + ROWS_ANSWER
            line.settimeout(ROWS_ANSWER)
            line.sendall(request(version, part))
            receive = receiver(line, until, self._rest, ROWS_ANSWER)
            theirs, rows = answered(receive, part, self._sizes, self._width)
            found |= rows
            least = min(least, theirs)
        return found, Standing.BEHIND if least < version else Standing.DONE

    def _line(self, rank: int, contact: Contact) -> socket.socket:
        known = self._lines.get(rank)
        if known is not None and known[0] == contact:
            return known[1]
        self._drop(rank)
        line = connect(contact)
        self._lines[rank] = contact, line
        return line

    def _drop(self, rank: int) -> None:
        if rank in self._lines:
            with suppress(OSError):
                self._lines.pop(rank)[1].close()
