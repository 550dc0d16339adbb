"""Where workers of other hosts ask a worker for rows: an address, a port and a key that whoever asks must know.

Every worker writes its own into its column of every message, in numbers of 16 bits. So whoever has a total can reach
all that took part in it; a newcomer is told with the state. Nobody else learns a key, as nobody else gets a total.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from meshmend.base.proofs import new_secret, proof, proves
from meshmend.job.embeddings.shape import Ids

KEY = 16
"""Bytes of a key."""
FORMAT = struct.Struct(f"!4sH{KEY}s")
PIECES = FORMAT.size // 2
"""Numbers of 16 bits that a contact has."""
ASKS, HOLDS = b"asks for rows", b"holds rows"
"""The two sides of a connection: a proof of one is none of the other."""


@dataclass(frozen=True)
class Contact:
    """Where one worker can be asked."""

    address: str
    """Of IPv4."""
    port: int
    key: bytes = field(repr=False, default_factory=lambda: new_secret(KEY))

    def pieces(self) -> Ids:
        """As numbers of 16 bits."""
        packed = FORMAT.pack(socket.inet_aton(self.address), self.port, self.key)
        return np.frombuffer(packed, "<u2").astype(np.int64)

    @classmethod
    def of(cls, pieces: Iterable[int]) -> Contact | None:
        """The contact that these are; None where nobody has written any."""
        address, port, key = FORMAT.unpack(np.array([*pieces], "<u2").tobytes())
        return cls(socket.inet_ntoa(address), port, key) if port else None

    def proof(self, who: bytes, numbers: bytes) -> bytes:
        """What only somebody who knows the key can say; `numbers` are used once, and both sides make one."""
        return proof(self.key, who, numbers)

    def proves(self, said: bytes, who: bytes, numbers: bytes) -> bool:
        """Whether that side has said it."""
        return proves(said, self.key, who, numbers)


@dataclass
class Contacts:
    """The contact of this worker, and those of the members of the last sum, by rank."""

    rank: int
    ranks: int
    """How many a message has columns for."""
    own: Contact
    known: Mapping[int, Contact] = field(default_factory=dict)

    def heard(self, columns: Ids) -> None:
        """A total has these columns, one for each rank."""
        every = {rank: Contact.of(columns[rank].tolist()) for rank in np.flatnonzero(columns.any(axis=1)).tolist()}
        self.known = {rank: one for rank, one in every.items() if one is not None}

    def facts(self) -> dict[str, list[int]]:
        """What a newcomer needs to know."""
        return {str(rank): one.pieces().tolist() for rank, one in self.known.items()}

    def adopt(self, facts: Mapping[str, Iterable[int]]) -> None:
        """Know what another worker has told."""
        every = {int(rank): Contact.of(pieces) for rank, pieces in facts.items()}
        self.known = {rank: one for rank, one in every.items() if one is not None}

    def hosts(self) -> dict[int, str]:
        """The address of each member, which those of one host have in common."""
        return {rank: one.address for rank, one in self.known.items()}
