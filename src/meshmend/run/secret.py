"""Secrets by which the processes of a run recognise each other on an untrusted network.

    the run's     for the launcher and its agents. Each launcher makes one and keeps it in memory. An agent gets it
                  through the launch agent's pipe, which ssh encrypts: it is never in a command line, an environment
                  or a file
    the door's    for the launcher and whoever announces a host to it (door.py), which has no pipe to it. Each
                  launcher makes one, and it is in a file that only the run's user can read, as long as that runs

A side proves that it has a secret by a keyed hash of two nonces, one from each side, and of which side it is: so a
proof cannot be replayed in another connection, or reflected.
"""

from __future__ import annotations

import hmac
import secrets
from hashlib import blake2b

SIZE = 32
"""Bytes of a secret, and of a proof."""
NUMBER = 16
"""Bytes of a number that is used once."""
LAUNCHER, AGENT, NEW_HOST = b"launcher", b"agent", b"new host"


def new_secret() -> bytes:
    """Return a new secret."""
    return secrets.token_bytes(SIZE)


def new_number() -> bytes:
    """Return a number that was never used before."""
    return secrets.token_bytes(NUMBER)


def proof(secret: bytes, who: bytes, numbers: bytes) -> bytes:
    """Return the proof that this side has the secret."""
    return blake2b(numbers, key=secret, person=who, digest_size=SIZE).digest()


def proves(found: bytes, secret: bytes, who: bytes, numbers: bytes) -> bool:
    """Whether this is that side's proof; takes constant time, so it reveals nothing about the secret."""
    return hmac.compare_digest(found, proof(secret, who, numbers))
