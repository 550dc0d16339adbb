"""Embedding tables beside a model of PyTorch: the same training as with `torch.nn.Embedding`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import meshmend as mm

ROWS = (40, 9)
STEPS, BATCH = 6, 32


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    ids = torch.stack([torch.randint(0, rows, (BATCH * STEPS,), generator=random) for rows in ROWS], dim=1)
    return ids, torch.randn(len(ids), generator=random)


def model() -> torch.nn.Module:
    torch.manual_seed(2)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6, 1))


def loss_of(net: torch.nn.Module, rows: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return ((net(rows)[:, 0] - right) ** 2).sum() / BATCH


def test_tables_learn_what_an_embedding_of_torch_learns() -> None:
    data, net = samples(), model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    tables = mm.EmbeddingTables(ROWS, width=3, optimizer=mm.row_sgd(0.1))
    every = np.stack([np.arange(max(ROWS)) % rows for rows in ROWS], axis=1)
    order = []
    with mm.Job((torch.arange(len(data[0])), *data), batch=BATCH, lanes=4) as job:
        job.share(net, optimizer, tables=tables)
        begin = torch.nn.ParameterList(
            [torch.from_numpy(np.array(tables.rows(every)[:rows, n])) for n, rows in enumerate(ROWS)]
        )

        def backward(lane: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, tuple[np.ndarray, np.ndarray]]:
            which, ids, right = lane
            seen.append(which)
            rows = tables.rows(ids)
            assert rows.requires_grad and rows.is_leaf
            loss = loss_of(net, rows, right)
            loss.backward()
            return loss, tables.gradient(ids, rows.grad)

        for _ in job.steps(STEPS):
            seen: list[torch.Tensor] = []
            job.sum(backward)
            order.append(torch.cat(seen[-4:]))  # the first lane is computed twice, as a check
            optimizer.step()
            job.commit()
        found = tables.rows(every)

    plain = model()
    both = torch.optim.SGD([*plain.parameters(), *begin], lr=0.1)
    for which in order:
        ids, right = data[0][which], data[1][which]
        both.zero_grad()
        loss_of(plain, torch.stack([begin[n][ids[:, n]] for n in range(2)], dim=1), right).backward()
        both.step()
    for n, rows in enumerate(ROWS):
        assert np.allclose(found[:rows, n], begin[n].detach().numpy(), atol=1e-6), n
    for mine, theirs in zip(net.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6)


def test_a_lane_without_gradients_of_rows_is_told() -> None:
    data, net = samples(), model()
    tables = mm.EmbeddingTables(ROWS, width=3, optimizer=mm.row_sgd(0.1))
    with mm.Job(data, batch=BATCH, lanes=4) as job:
        job.share(net, tables=tables)
        with pytest.raises(mm.JobError, match="returned a Tensor; in a job with tables, return a pair"):
            job.sum(lambda lane: loss_of(net, tables.rows(lane[0]), lane[1]))


def test_rows_are_what_the_ids_are() -> None:
    tables = mm.EmbeddingTables(ROWS, width=3, optimizer=mm.row_sgd(0.1))
    with mm.Job(np.arange(8), batch=4, lanes=2) as job:
        job.share(np.zeros(1, np.float32), tables=tables)
        ids = np.array([[3, 1]])
        assert isinstance(tables.rows(ids), np.ndarray)
        tensor = tables.rows(torch.from_numpy(ids))
        assert tensor.requires_grad and tensor.detach().numpy().tobytes() == tables.rows(ids).tobytes()
