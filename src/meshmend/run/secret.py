"""The secret of a run, by which its launcher and its agents know each other on a network that anybody may use.

Each launcher makes one and keeps it in memory. An agent gets it through the launch agent's pipe, which ssh encrypts: it
is never in a command line, an environment or a file. One side proves that it has it by a keyed hash of two numbers that
are used once, one of each side's, and of which side it is: so a proof is of no use in another connection, or to answer
with.
"""

from __future__ import annotations

import hmac
import secrets
from hashlib import blake2b

SIZE = 32
"""Bytes of a secret, and of a proof."""
NUMBER = 16
"""Bytes of a number that is used once."""
LAUNCHER, AGENT = b"launcher", b"agent"


def new_secret() -> bytes:
    """A secret that nobody else has."""
    return secrets.token_bytes(SIZE)


def new_number() -> bytes:
    """A number that was never used before."""
    return secrets.token_bytes(NUMBER)


def proof(secret: bytes, who: bytes, numbers: bytes) -> bytes:
    """What shows that this side has the secret."""
    return blake2b(numbers, key=secret, person=who, digest_size=SIZE).digest()


def proves(found: bytes, secret: bytes, who: bytes, numbers: bytes) -> bool:
    """Whether this is that side's proof; how long that takes says nothing about the secret."""
    return hmac.compare_digest(found, proof(secret, who, numbers))
