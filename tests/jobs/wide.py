"""Training with messages large enough to stay in slices: `wide.py [reduction=exact] [steps=12] [crowd=N] [sharded=N]`.

`crowd=N` ends after the first step from 12 on that N workers took part in; `sharded=N` has another job follow, of N
steps with sharded updates.
"""

import hashlib
import sys

import numpy as np

import meshmend as mm

SIZE = 150_001


def sharded(weights: np.ndarray, samples: np.ndarray, steps: int) -> np.ndarray:
    def update(weights: np.ndarray, gradients: np.ndarray, state: dict) -> tuple:
        return weights - np.float32(0.001) * gradients, state

    with mm.Job(samples, batch=24, lanes=8, reduction="exact") as job:
        found = job.share({"a": weights}, optimizer=mm.optimizer(lambda _: {}, update))
        for _ in job.steps(steps):
            found = job.update(lambda lane, found=found: {"a": found["a"] * lane.sum()})  # type: ignore[misc]
            job.commit()
    return found["a"]


def main() -> None:
    options = dict(word.split("=") for word in sys.argv[1:])
    crowd, base = int(options.get("crowd", 0)), np.random.default_rng(0).normal(size=SIZE).astype(np.float32)
    samples = np.random.default_rng(1).normal(size=(64, 2)).astype(np.float32)
    with mm.Job(samples, batch=24, lanes=8, reduction=options.get("reduction", "exact")) as job:
        state = job.share({"a": base[: SIZE // 3], "b": base[SIZE // 3 :]})
        for step in job.steps(int(options.get("steps", 12))):

            def gradient(lane: np.ndarray, state: dict = state) -> dict:
                pull, push = lane.sum(0)
                return {name: one * pull + push * np.float32(0.01) for name, one in state.items()}

            grads = job.sum(gradient)
            state = {name: one - np.float32(0.001) * grads[name] for name, one in state.items()}
            job.commit(state)
            if step >= 12 and len(job.training.session.account.digests) == crowd:
                break
        found = np.concatenate([state["a"], state["b"]])
    if "sharded" in options:
        found = sharded(found, samples, int(options["sharded"]))
    print(f"weights {hashlib.sha256(found.tobytes()).hexdigest()} after {step + 1}", flush=True)


if __name__ == "__main__":
    main()
