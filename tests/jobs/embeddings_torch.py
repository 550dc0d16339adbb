"""Trains embedding tables beside a PyTorch model, and prints a digest of all rows and of the model."""

from __future__ import annotations

import hashlib
import sys

import torch

import meshmend as mm

ROWS = (700, 300, 41)


def main() -> None:
    options = dict(word.split("=") for word in sys.argv[1:])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ids = torch.stack([torch.randint(0, rows, (1200,)) for rows in ROWS], dim=1)
    wanted = sum(torch.randn(rows)[ids[:, table]] for table, rows in enumerate(ROWS))
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(12, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    tables = mm.EmbeddingTables(ROWS, width=4, optimizer=mm.row_adagrad(0.1))
    with mm.Job((ids, wanted), batch=64, lanes=16, reduction="exact") as job:
        job.share(model, adam, tables=tables)

        def backward(lane: tuple) -> tuple:
            which, right = lane
            rows = tables.rows(which)
            loss = ((model(rows)[:, 0] - right) ** 2).sum() / job.batch
            loss.backward()
            return loss, tables.gradient(which, rows.grad)

        for step in job.steps(int(options.get("steps", 12))):
            loss = job.sum(backward)
            adam.step()
            job.commit(loss=loss)
            if step % 5 == 4:
                with torch.no_grad():
                    scores = job.evaluate((ids, wanted), lambda chunk: model(tables.rows(chunk[0]))[:, 0], rows=True)
                print(f"scores {hashlib.sha256(scores.tobytes()).hexdigest()[:16]} in {step}", flush=True)
        every = tables.rows(torch.stack([torch.arange(max(ROWS)) % rows for rows in ROWS], dim=1)).detach()
        found = hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in [every, *model.parameters()]))
        print(f"weights {found.hexdigest()} after {job.step}", flush=True)
        job.barrier()


if __name__ == "__main__":
    main()
