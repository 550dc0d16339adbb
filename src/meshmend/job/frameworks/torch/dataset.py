"""PyTorch's datasets, as data that can be indexed with many ids at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class Rows:
    """A dataset that returns one sample at a time, as one that takes many ids: `collate` puts the samples together."""

    def __init__(self, dataset: Any, collate: Any = None) -> None:
        self._dataset = dataset
        self._collate = collate or torch.utils.data.default_collate

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, ids: Sequence[int]) -> Any:
        if isinstance(self._dataset, torch.utils.data.TensorDataset):
            return [column[torch.as_tensor(ids)] for column in self._dataset.tensors]
        return self._collate([self._dataset[int(one)] for one in ids])


def is_dataset(data: Any) -> bool:
    """Whether this is one of PyTorch's datasets."""
    return isinstance(data, torch.utils.data.Dataset)
