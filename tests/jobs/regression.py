"""A small exact training run for tests: a line a step, and a hash of the weights at the end.

`pause=SECONDS` makes every step take so much longer; `bad=STEP` makes a gradient of that step infinite; `wrong=STEP`
raises in that step on every worker; `odd=RANK` makes that worker return gradients of another shape; `width=NUMBER` is
how many weights there are; after `gate=STEP` all workers wait until there is a file called `open`; `crowd=N` ends
after the first step from 20 on that N workers took part in; `host=RANK` leaves that worker without device memory.
"""

import hashlib
import os
import sys
import time

import numpy as np

import meshmend as mm


def main() -> None:
    random = np.random.default_rng(0)
    options = dict(word.split("=") for word in sys.argv[1:])
    width = int(options.get("width", 20))
    if options.get("host", "") == os.environ.get("MESHMEND_RANK"):
        os.environ["MESHMEND_DEVICE_MEMORY"] = "off"
    x = random.normal(size=(500, width)).astype(np.float32)
    y = (x @ random.normal(size=width)).astype(np.float32)
    bad, wrong = int(options.get("bad", -1)), int(options.get("wrong", -1))
    odd, gate, crowd = options.get("odd", ""), int(options.get("gate", -1)), int(options.get("crowd", 0))
    with mm.Job(
        (x, y),
        batch=64,
        lanes=16,
        reduction=options.get("reduction", "exact"),
        wire=options.get("wire", "float32"),
        nonfinite=options.get("nonfinite"),
    ) as job:
        state = job.share({"w": np.zeros(width, np.float32), "step": np.zeros((), np.int32)})
        done = 0
        for step in job.steps(int(options.get("steps", 20))):

            def gradient(lane: tuple[np.ndarray, np.ndarray], state: dict = state) -> tuple:
                if job.step == wrong:
                    raise ValueError(f"this data is wrong in step {job.step}")
                error = lane[0] @ state["w"] - lane[1]
                grad = lane[0].T @ error
                if odd == os.environ.get("MESHMEND_RANK"):
                    grad = grad[:-1]
                return {"w": grad * np.float32(np.inf) if job.step == bad else grad}, np.float32((error**2).sum())

            grads, loss = job.sum(gradient)
            state = {"w": state["w"] - np.float32(0.1 / job.batch) * grads["w"], "step": state["step"] + 1}
            job.commit(state, loss=loss / job.batch)
            time.sleep(float(options.get("pause", 0)))
            while step == gate and not os.path.exists("open"):
                time.sleep(0.01)
            done = step + 1
            if step >= 20 and len(job.training.session.account.digests) == crowd:
                break  # in the same step everywhere: all members know who took part in its sum
        if done:  # a spare may pass through
            print(f"weights {hashlib.sha256(state['w'].tobytes()).hexdigest()} after {done}", flush=True)


if __name__ == "__main__":
    main()
