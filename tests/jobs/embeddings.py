"""Trains embedding tables with known clicks, and prints a digest of all rows and of the state."""

from __future__ import annotations

import hashlib
import os
import sys
import time

import numpy as np

import meshmend as mm

ROWS = (700, 300, 41)
OPTIMIZERS = {"adagrad": mm.row_adagrad(0.1), "sgd": mm.row_sgd(0.1)}


def sample(number: int) -> int:
    """Which sample of the data this is; one cannot be read."""
    if number == 17:
        raise ValueError("it is damaged")
    return number


def main() -> None:
    options = dict(word.split("=") for word in sys.argv[1:])
    random = np.random.default_rng(0)
    ids = np.stack([random.integers(0, rows, 1200) for rows in ROWS], axis=1)
    wanted = sum(random.normal(size=rows).astype(np.float32)[ids[:, table]] for table, rows in enumerate(ROWS))
    buddies = int(options["buddies"]) if "buddies" in options else None
    tables = mm.EmbeddingTables(
        ROWS, width=4, optimizer=OPTIMIZERS[options.get("optimizer", "adagrad")], buddies=buddies
    )
    bad, gate, crowd = (int(options.get(name, -1)) for name in ("bad", "gate", "crowd"))
    rows = mm.data.rows(range(len(ids)), on_error="skip").map(sample).map(lambda n: (ids[n], wanted[n]))
    with mm.Job(
        rows if "damaged" in options else (ids, wanted),
        batch=64,
        lanes=16,
        reduction=options.get("reduction", "exact"),
        nonfinite=options.get("nonfinite"),
    ) as job:
        weights = job.share({"w": np.full((3, 4), 0.5, np.float32)}, tables=tables)

        def scored(weights: dict, which: np.ndarray) -> tuple:
            rows = tables.rows(which)
            return rows, (rows * weights["w"]).sum(axis=(1, 2))

        def gradient(lane: tuple) -> tuple:
            which, right = lane
            rows, found = scored(weights, which)
            error = (found - right).astype(np.float32) * np.float32(10.0 ** (job.step % 5) if "grow" in options else 1)
            if job.step == bad:
                error = error * np.float32(np.inf)
            down = error[:, None, None]
            sums = {"w": (down * rows).sum(axis=0, dtype=np.float32)}, {"loss": np.float32((error**2).sum())}
            return sums, tables.gradient(which, np.float32(1 / job.batch) * down * weights["w"][None])

        def score(chunk: tuple) -> np.ndarray:
            return scored(weights, chunk[0])[1]

        for step in job.steps(int(options.get("steps", 20))):
            grads, more = job.sum(gradient)
            weights = {"w": weights["w"] - np.float32(0.002) * grads["w"]}
            job.commit(weights, loss=more["loss"])
            if step > 0 and "share" in options:
                share = tables.held / tables.nbytes
                assert share <= float(options["share"]), f"worker {job.rank} holds {share:.3f} of the tables"
            if step % 5 == 4:
                scores = job.evaluate((ids, wanted), score, rows=True)
                print(f"scores {hashlib.sha256(scores.tobytes()).hexdigest()[:16]} in {step}", flush=True)
            if step == int(options.get("best", -1)):
                job.save("best", loss=more["loss"])
            time.sleep(float(options.get("pause", 0)))
            while step == gate and not os.path.exists("open"):
                time.sleep(0.01)
            if step >= int(options.get("least", 20)) and len(job.training.session.account.digests) == crowd:
                break  # in the same step everywhere: all members know who took part in its sum
        every = [tables.rows(np.stack([np.arange(max(ROWS)) % rows for rows in ROWS], axis=1)), weights["w"]]
        found = hashlib.sha256(b"".join(one.tobytes() for one in every)).hexdigest()
        print(f"weights {found} after {job.step}", flush=True)
        job.barrier()


if __name__ == "__main__":
    main()
