"""Handwritten digits in PyTorch: convolutions, batch norm, Adam, a schedule. Alone, or on workers that may die:

    python examples/digits_torch.py
    meshmend run -n 4 examples/digits_torch.py

Both end with the same weights, bit for bit.
"""

import argparse
import hashlib

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import meshmend as mm

torch.set_num_threads(1)  # the workers share this machine's cores already
TEST = 360  # of 1797 samples


def load():
    """Images and labels, shuffled once."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return torch.from_numpy(images[order] / 16).float().reshape(-1, 1, 8, 8), torch.from_numpy(labels[order])


def network():
    """Two convolutions with batch norm, then dense layers."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.1), nn.Linear(32 * 4 * 4, 10),
    )  # fmt: skip


def main(steps: int) -> None:
    """Train, then say how good the weights are, and which."""
    images, labels = load()
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.005, total_steps=steps + 1)

    with mm.Job((images[TEST:], labels[TEST:]), batch=128, lanes=8, reduction="exact") as job:
        job.share(model, optimizer, scheduler)

        def backward(lane):
            x, y = lane
            loss = cross_entropy(model(x), y) / job.lanes  # so that the sum over lanes is the mean over the batch
            loss.backward()
            return loss

        for _ in job.steps(steps):
            loss = job.sum(backward)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            job.commit(loss=loss)

    model.eval()
    with torch.no_grad():
        right = (model(images[:TEST]).argmax(1) == labels[:TEST]).float().mean()
    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values()))
    print(f"test accuracy {right:.1%}, weights {digest.hexdigest()[:16]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train on scikit-learn's digits.")
    parser.add_argument("--steps", type=int, default=200)
    main(parser.parse_args().steps)
