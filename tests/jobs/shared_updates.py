"""A small exact training run with Adam for tests: sharded, or with `plain=1` the loop that it must equal to the bit.

`steps=NUMBER`; `pause=SECONDS` makes every step take so much longer; `buddies=NUMBER`; `gate=STEP`: after it all
workers wait until there is a file called `open`; `crowd=N` ends after the first step from 20 on that N workers took
part in; `grow=1` makes gradients jump, so that rounds are done again on wider grids; `bad=STEP` makes a gradient of
that step infinite; `wrong=STEP` raises in that step on every worker; `best=STEP` saves a checkpoint of that name
after it; `say=1` has workers gather before the first step and after every fourth.
"""

import hashlib
import os
import sys
import time

import numpy as np

import meshmend as mm

SIZES = {"w": 9000, "b": 3, "u": 2500}


def init(weights: np.ndarray) -> dict:
    return {"m": np.zeros_like(weights), "v": np.zeros_like(weights), "count": np.zeros((), np.int64)}


def update(weights: np.ndarray, gradients: np.ndarray, state: dict) -> tuple:
    count, gradients = state["count"] + 1, gradients / np.float32(64)
    m = np.float32(0.9) * state["m"] + np.float32(0.1) * gradients
    v = np.float32(0.999) * state["v"] + np.float32(0.001) * gradients * gradients
    step = m / np.float32(1 - 0.9**count) / (np.sqrt(v / np.float32(1 - 0.999**count)) + np.float32(1e-8))
    return weights - np.float32(0.01) * step, {"m": m, "v": v, "count": np.asarray(count)}


def main() -> None:
    options = dict(word.split("=") for word in sys.argv[1:])
    random = np.random.default_rng(0)
    x = random.normal(size=(500, 20)).astype(np.float32)
    spread = {name: random.normal(size=(20, size)).astype(np.float32) for name, size in SIZES.items()}
    bad, gate, crowd = (int(options.get(name, -1)) for name in ("bad", "gate", "crowd"))
    weights = {name: np.zeros(size, np.float32) for name, size in SIZES.items()}
    plain, buddies = "plain" in options, int(options["buddies"]) if "buddies" in options else None
    with mm.Job(x, batch=64, lanes=16, reduction="exact", nonfinite=options.get("nonfinite")) as job:
        if plain:
            weights, state = job.share((weights, {name: init(value) for name, value in weights.items()}))
        else:
            weights = job.share(weights, optimizer=mm.optimizer(init, update), buddies=buddies)
        if "say" in options and not job.step:
            assert job.gather(job.rank)

        def gradient(lane: np.ndarray) -> tuple:
            if job.step == int(options.get("wrong", -1)):
                raise ValueError(f"this data is wrong in step {job.step}")
            scale = np.float32(10.0 ** (job.step % 7) if "grow" in options else 1)
            wanted = np.sin(lane.sum(0))
            error = {name: (weights[name] - wanted @ spread[name]) * scale for name in weights}
            if job.step == bad:
                error["u"] = error["u"] * np.float32(np.inf)
            return error, {"loss": np.float32(sum((one**2).sum() for one in error.values())), "lanes": np.int32(1)}

        for step in job.steps(int(options.get("steps", 20))):
            if plain:
                sums, more = job.sum(gradient)
                done = {name: update(weights[name], sums[name], state[name]) for name in weights}
                weights, state = ({name: pair[which] for name, pair in done.items()} for which in (0, 1))
                job.commit((weights, state), loss=more["loss"])
            else:
                weights, more = job.update(gradient)
                job.commit(loss=more["loss"])
            assert more["lanes"] == 16
            if step == int(options.get("best", -1)):
                job.save("best", loss=more["loss"])
                assert job.saved("best") == {"loss": float(more["loss"])}
            time.sleep(float(options.get("pause", 0)))
            if "say" in options and step % 4 == 0:
                assert job.gather(step)[0] == step
            while step == gate and not os.path.exists("open"):
                time.sleep(0.01)
            if step >= 20 and len(job.training.session.account.digests) == crowd:
                break  # in the same step everywhere: all members know who took part in its sum
        found = hashlib.sha256(b"".join(weights[name].tobytes() for name in sorted(weights))).hexdigest()
        print(f"weights {found} after {job.step}", flush=True)


if __name__ == "__main__":
    main()
