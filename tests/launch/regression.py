"""A small exact training run for tests: prints a line a step, and a hash of the weights at the end.

`kill=SEAT:STEP` among the arguments: that worker kills itself while it computes that step; `stop=SEAT:STEP`: it stops.
`pause=SECONDS` makes every step take so much longer.
"""

import hashlib
import os
import signal
import sys
import time

import numpy as np

import meshmend as mm

SEAT = os.environ.get("MESHMEND_SEAT", "0")


def main() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(500, 20)).astype(np.float32)
    y = (x @ random.normal(size=20)).astype(np.float32)
    options = dict(word.split("=") for word in sys.argv[1:])
    with mm.Job((x, y), batch=64, lanes=16, reduction=options.get("reduction", "exact")) as job:
        state = job.share({"w": np.zeros(20, np.float32), "step": np.zeros((), np.int32)})
        for step in job.steps(int(options.get("steps", 20))):

            def gradient(lane: tuple[np.ndarray, np.ndarray], state: dict = state, step: int = step) -> tuple:
                if f"{SEAT}:{step}" in options.get("kill", "").split("+"):
                    os.kill(os.getpid(), signal.SIGKILL)
                if f"{SEAT}:{step}" in options.get("stop", "").split("+"):
                    os.kill(os.getpid(), signal.SIGSTOP)
                error = lane[0] @ state["w"] - lane[1]
                return {"w": lane[0].T @ error}, np.float32((error**2).sum())

            grads, loss = job.sum(gradient)
            state = {"w": state["w"] - np.float32(0.1 / job.batch) * grads["w"], "step": state["step"] + 1}
            job.commit(state)
            time.sleep(float(options.get("pause", 0)))
            print(f"step {step} loss {loss / job.batch:.4f}", flush=True)
        print(f"weights {hashlib.sha256(state['w'].tobytes()).hexdigest()} after {state['step']}", flush=True)


if __name__ == "__main__":
    main()
