"""A small exact training run with Adam for tests: sharded, or with `plain=1` the loop that it must equal to the bit.

`steps=NUMBER`; `pause=SECONDS` makes every step take so much longer; `buddies=NUMBER`; `gate=STEP`: after it all
workers wait until there is a file called `open`; `crowd=N` ends after the first step from 20 on that N workers took
part in; `grow=1` makes gradients jump, so that rounds are done again on wider grids; `bad=STEP` makes a gradient of
that step infinite; `wrong=STEP` raises in that step on every worker; `best=STEP` saves a checkpoint of that name
after it; `say=1` has workers gather before the first step and after every fourth; `optimizer=NAME` takes another one,
which needs norms of whole tensors (lars, lamb, clipped) or whole tensors (rows); `reduction=float`; `full=N`: so many
times, a worker has no room for a copy of a slice.
"""

import errno
import hashlib
import os
import sys
import time

import numpy as np

import meshmend as mm
from meshmend.job.reduction.norms import Blocks, Norm, clipping
from meshmend.job.reduction.pieces import pieces_of
from meshmend.job.shm.files import RankFiles
from meshmend.job.slices.optimizers import Optimizer

SIZES = {"w": 9000, "b": 3, "u": 2500}


def init(weights: np.ndarray) -> dict:
    return {"m": np.zeros_like(weights), "v": np.zeros_like(weights), "count": np.zeros((), np.int64)}


def update(weights: np.ndarray, gradients: np.ndarray, state: dict) -> tuple:
    count, gradients = state["count"] + 1, gradients / np.float32(64)
    m = np.float32(0.9) * state["m"] + np.float32(0.1) * gradients
    v = np.float32(0.999) * state["v"] + np.float32(0.001) * gradients * gradients
    step = m / np.float32(1 - 0.9**count) / (np.sqrt(v / np.float32(1 - 0.999**count)) + np.float32(1e-8))
    return weights - np.float32(0.01) * step, {"m": m, "v": v, "count": np.asarray(count)}


def by_rows(weights: np.ndarray, gradients: np.ndarray, state: dict) -> tuple:
    """Adam with rows of gradients that are centred: it must see whole matrices."""
    if gradients.ndim > 1:
        gradients = gradients - gradients.mean(axis=1, keepdims=True)
    return update(weights, gradients, state)


OPTIMIZERS = {
    "adam": mm.optimizer(init, update),
    "clipped": mm.clipped(mm.optimizer(init, update), 5.0),
    "lars": mm.clipped(mm.lars(mm.WarmupDecay(2.0, 3, 40), decay=1e-4, divide=64), 1e4),
    "lamb": mm.lamb(0.01, divide=64),
    "rows": mm.optimizer(init, by_rows),
}


def alone(name: str, weights: dict, sums: dict, states: dict) -> tuple:
    """The update without slices: of whole tensors, one after another, with norms of all of them."""
    made, names = OPTIMIZERS[name], sorted(weights)
    blocks = Blocks([weights[one].size for one in names])
    everything = np.concatenate([sums[one].reshape(-1) for one in names])
    if hasattr(made, "inner"):
        factor = clipping(np.float32(np.sqrt(blocks.in_all(blocks.squares(everything)))), made.most)
        made, sums = made.inner, {one: sums[one] * factor for one in names}
    assert isinstance(made, Optimizer)
    done = {}
    for one in names:
        flat = [value[one] if name == "rows" else value[one].reshape(-1) for value in (weights, sums)]
        if name in ("lars", "lamb"):
            pieces = pieces_of([(one, weights[one].shape)], 0, weights[one].size)
            work, mine = made.update(*flat, states[one], pieces), Blocks([weights[one].size])
            roots = [np.float32(np.sqrt(mine.in_all(mine.squares(array)))) for array in next(work)]
            try:
                work.send(tuple(Norm(root, np.full_like(flat[0], root)) for root in roots))
            except StopIteration as end:
                done[one] = end.value
        else:
            done[one] = made.update(*flat, states[one])
    new = {one: done[one][0].reshape(weights[one].shape) for one in names}
    return new, {one: done[one][1] for one in names}


def fill_memory(times: int) -> None:
    """From now on, so many copies of slices find no room."""
    write = RankFiles.write_copy

    def fail(files: RankFiles, number: int, pieces: list) -> None:
        nonlocal times
        if times:
            times -= 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(files, number, pieces)

    RankFiles.write_copy = fail  # type: ignore[method-assign]


def main() -> None:
    options = dict(word.split("=") for word in sys.argv[1:])
    fill_memory(int(options.get("full", 0)))
    random = np.random.default_rng(0)
    x = random.normal(size=(500, 20)).astype(np.float32)
    spread = {name: random.normal(size=(20, size)).astype(np.float32) for name, size in SIZES.items()}
    bad, gate, crowd = (int(options.get(name, -1)) for name in ("bad", "gate", "crowd"))
    name = options.get("optimizer", "adam")
    weights = {one: np.zeros(size, np.float32) for one, size in SIZES.items()}
    if name != "adam":
        weights = {one: np.linspace(-1, 1, size, dtype=np.float32) for one, size in SIZES.items()}
        weights["w"] = weights["w"].reshape(90, 100)
    shapes = {one: value.shape for one, value in weights.items()}
    plain, buddies = "plain" in options, int(options["buddies"]) if "buddies" in options else None
    with mm.Job(
        x, batch=64, lanes=16, reduction=options.get("reduction", "exact"), nonfinite=options.get("nonfinite")
    ) as job:
        if plain:
            begin = getattr(OPTIMIZERS[name], "inner", OPTIMIZERS[name]).init
            first = {one: begin(value if name == "rows" else value.reshape(-1)) for one, value in weights.items()}
            weights, state = job.share((weights, first))
        else:
            slices = "tensors" if name == "rows" else None
            weights = job.share(weights, optimizer=OPTIMIZERS[name], buddies=buddies, slices=slices)
        if "say" in options and not job.step:
            assert job.gather(job.rank)

        def gradient(lane: np.ndarray) -> tuple:
            if job.step == int(options.get("wrong", -1)):
                raise ValueError(f"this data is wrong in step {job.step}")
            scale = np.float32(10.0 ** (job.step % 7) if "grow" in options else 1)
            wanted = np.sin(lane.sum(0))
            error = {one: (weights[one] - (wanted @ spread[one]).reshape(shapes[one])) * scale for one in weights}
            if job.step == bad:
                error["u"] = error["u"] * np.float32(np.inf)
            return error, {"loss": np.float32(sum((one**2).sum() for one in error.values())), "lanes": np.int32(1)}

        for step in job.steps(int(options.get("steps", 20))):
            if plain:
                sums, more = job.sum(gradient)
                weights, state = alone(name, weights, sums, state)
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
