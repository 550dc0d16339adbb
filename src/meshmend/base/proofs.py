"""How two processes prove to each other that they know a secret, on a network that nobody trusts.

A proof is a keyed hash of two numbers, one from each side and used once, and of which side it is: so it cannot be
replayed in another connection, or reflected.
"""

from __future__ import annotations

import hmac
import secrets
from hashlib import blake2b

SIZE = 32
"""Bytes of a secret, and of a proof."""
NUMBER = 16
"""Bytes of a number that is used once."""


def new_secret(size: int = SIZE) -> bytes:
    """Return a new secret."""
    return secrets.token_bytes(size)


def new_number() -> bytes:
    """Return a number that was never used before."""
    return secrets.token_bytes(NUMBER)


def proof(secret: bytes, who: bytes, numbers: bytes) -> bytes:
    """Return the proof that this side has the secret."""
    return blake2b(numbers, key=secret, person=who, digest_size=SIZE).digest()


def proves(found: bytes, secret: bytes, who: bytes, numbers: bytes) -> bool:
    """Whether this is that side's proof; takes constant time, so it reveals nothing about the secret."""
    return hmac.compare_digest(found, proof(secret, who, numbers))
