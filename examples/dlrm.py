"""DLRM on clicks made here: 26 embedding tables that are spread over all workers, and the AUC on clicks not seen.

    python examples/dlrm.py
    meshmend run -n 4 examples/dlrm.py
    meshmend run -n 4 examples/dlrm.py --rows 1500000 --batch 2048     # tables of 1.5 million rows in all

Kill workers while it runs: rows of the dead are read from the workers that hold the same, and the AUC at the end is the
same to the last digit, as it is with one worker.

M. Naumov et al.: Deep Learning Recommendation Model for Personalization and Recommendation Systems. arXiv 1906.00091.
"""

from __future__ import annotations

import argparse
import hashlib

import numpy as np

import meshmend as mm

TABLES, DENSE, WIDTH, HIDDEN = 26, 13, 16, 32


def sizes(rows: int) -> list[int]:
    """How many rows each table has: a few are large and most are small, as in the Criteo data."""
    share = 0.75 ** np.arange(TABLES)
    return [max(4, int(rows * part / share.sum())) for part in share]


def clicks(count: int, tables: list[int], seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(ids, dense features, clicked): each entry of a table has a liking of its own, and some are far more frequent."""
    random, nature = np.random.default_rng(seed), np.random.default_rng(1)
    ids = np.stack([(rows * random.random(count) ** 3).astype(np.int32) for rows in tables], axis=1)
    dense = random.normal(size=(count, DENSE)).astype(np.float32)
    score = dense @ nature.normal(size=DENSE) * 0.2
    for table in range(TABLES):
        score += nature.normal(size=997)[ids[:, table] % 997] * 0.4
    return ids, dense, (random.random(count) < 1 / (1 + np.exp(-score))).astype(np.float32)


def init(seed: int = 0) -> dict[str, np.ndarray]:
    """The weights of the layers, which every worker holds in full."""
    random, pairs = np.random.default_rng(seed), (TABLES + 1) * TABLES // 2
    made = {"bottom": (DENSE, WIDTH), "top": (WIDTH + pairs, HIDDEN), "out": (HIDDEN, 1)}
    weights = {name: random.normal(size=size) / np.sqrt(size[0]) for name, size in made.items()}
    weights |= {"bottom_bias": np.zeros(WIDTH), "top_bias": np.zeros(HIDDEN), "out_bias": np.zeros(1)}
    return {name: value.astype(np.float32) for name, value in weights.items()}


PAIRS = np.tril_indices(TABLES + 1, -1)


def forward(w: dict, rows: np.ndarray, dense: np.ndarray) -> tuple:
    """The logits, and what the gradient needs: dense features and rows meet in inner products, two by two."""
    bottom = np.maximum(dense @ w["bottom"] + w["bottom_bias"], 0)
    vectors = np.concatenate([bottom[:, None], rows], axis=1)
    inner = np.matmul(vectors, vectors.transpose(0, 2, 1))[:, PAIRS[0], PAIRS[1]]
    joined = np.concatenate([bottom, inner], axis=1)
    top = np.maximum(joined @ w["top"] + w["top_bias"], 0)
    return (top @ w["out"] + w["out_bias"])[:, 0], (bottom, vectors, joined, top)


def gradients(w: dict, rows: np.ndarray, dense: np.ndarray, clicked: np.ndarray) -> tuple:
    """Summed gradients of the weights, gradients of each row, and the summed loss of one lane."""
    logits, (bottom, vectors, joined, top) = forward(w, rows, dense)
    down = (1 / (1 + np.exp(-logits)) - clicked)[:, None].astype(np.float32)
    of = {"out": top.T @ down, "out_bias": down.sum(axis=0)}
    down = (down @ w["out"].T) * (top > 0)
    of |= {"top": joined.T @ down, "top_bias": down.sum(axis=0)}
    down = down @ w["top"].T
    square = np.zeros((len(rows), TABLES + 1, TABLES + 1), np.float32)
    square[:, PAIRS[0], PAIRS[1]] = down[:, WIDTH:]
    meet = np.matmul(square + square.transpose(0, 2, 1), vectors)
    down = (down[:, :WIDTH] + meet[:, 0]) * (bottom > 0)
    of |= {"bottom": dense.T @ down, "bottom_bias": down.sum(axis=0)}
    loss = np.sum(np.maximum(logits, 0) - logits * clicked + np.log1p(np.exp(-np.abs(logits))))
    return of, meet[:, 1:], np.float32(loss)


def auc(scores: np.ndarray, clicked: np.ndarray) -> float:
    """The chance that a click has a higher score than no click; ties count one half."""
    ordered = np.sort(scores)
    ranks = (np.searchsorted(ordered, scores) + np.searchsorted(ordered, scores, side="right") + 1) / 2
    right = clicked > 0.5
    hits = int(right.sum())
    return float((ranks[right].sum() - hits * (hits + 1) / 2) / (hits * (len(clicked) - hits)))


def main() -> None:
    """Train, evaluate, and print the AUC."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000, help="rows of all tables together")
    parser.add_argument("--samples", type=int, default=65_536)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--lanes", type=int, default=16)
    parser.add_argument("--steps", type=int, default=128)
    parser.add_argument("--buddies", type=int, default=None)
    options = parser.parse_args()
    tables = mm.EmbeddingTables(
        sizes(options.rows), WIDTH, optimizer=mm.row_adagrad(0.15), buddies=options.buddies, scale=0.05
    )
    data, held_out = (clicks(count, sizes(options.rows), seed) for count, seed in ((options.samples, 2), (8192, 3)))
    with mm.Job(data, batch=options.batch, lanes=options.lanes, reduction="exact") as job:
        state = job.share(init(), tables=tables)

        def lane(samples: tuple) -> tuple:
            ids, dense, clicked = samples
            of, of_rows, loss = gradients(state, tables.rows(ids), dense, clicked)
            return (of, loss), tables.gradient(ids, of_rows / np.float32(job.batch))

        for _ in job.steps(options.steps):
            sums, loss = job.sum(lane)
            state = {name: value - np.float32(0.1 / job.batch) * sums[name] for name, value in state.items()}
            job.commit(state, loss=loss / job.batch)

        def score(samples: tuple) -> np.ndarray:
            return forward(state, tables.rows(samples[0]), samples[1])[0]

        scores = job.evaluate(held_out, score, rows=True)
        digest = hashlib.sha256(b"".join([scores.tobytes(), *(state[name].tobytes() for name in sorted(state))]))
        print(f"worker {job.rank} holds {tables.held / tables.nbytes:.3f} of the tables", flush=True)
        print(f"AUC {auc(scores, held_out[2]):.6f}, bits {digest.hexdigest()[:16]}", flush=True)


if __name__ == "__main__":
    main()
