"""A numpy training script whose samples are decoded, cached and augmented by `mm.data`; it notes each decoding."""

import hashlib
import os
import sys
from pathlib import Path

import numpy as np

import meshmend as mm

OPTIONS = dict(word.split("=") for word in sys.argv[1:])
SIZE = 200


def decode(number: int) -> np.ndarray:
    with Path("decoded").open("a") as file:
        file.write(f"{os.getpid()} {number}\n")
    if number == 17:
        raise ValueError("it is damaged")
    return np.random.default_rng(number).normal(size=(12, 12)).astype(np.float32)


def crop(sample: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    y, x = rng.integers(0, 5, 2)
    return sample[y : y + 8, x : x + 8]


def main() -> None:
    data = mm.data.rows(range(SIZE), on_error="skip").map(decode)
    if OPTIONS.get("cache", "memory") != "none":
        data = data.cache("1MB", folder="disk" if OPTIONS.get("cache") == "disk" else None)
    data = data.map(crop).read_ahead(int(OPTIONS.get("ahead", 4)))
    with mm.Job(data, batch=40, lanes=8, reduction="exact") as job:
        state = job.share(np.zeros((8, 8), np.float32))
        for _ in job.steps(int(OPTIONS.get("steps", 15))):
            total = job.sum(lambda lane, state=state: (lane * lane + state).sum(0) / np.float32(40))
            state = state + total
            job.commit(state, loss=float(np.abs(total).max()))
    print(f"weights {hashlib.sha256(state.tobytes()).hexdigest()} after", flush=True)


if __name__ == "__main__":
    main()
