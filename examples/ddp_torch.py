"""What a DDP script has, in PyTorch: batch norm, bf16, clipping, augmentation, validation, a cosine schedule.

    python examples/ddp_torch.py
    meshmend run -n 4 examples/ddp_torch.py

The loop is an ordinary one, run once per lane; a lane of a dead worker is just one more batch for another.
"""

import argparse
import hashlib

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

import meshmend as mm

torch.set_num_threads(1)  # the workers share this machine's cores already
TEST = 360  # of 1797 samples


class Digits(Dataset):
    """Images with labels; those to train on are shifted by up to a pixel."""

    def __init__(self, images, labels, augment):
        self.images, self.labels, self.augment = images, labels, augment

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index]
        if self.augment:
            down, right = torch.randint(-1, 2, (2,)).tolist()
            image = image.roll((down, right), (1, 2))
        return image, self.labels[index]


def network():
    """Two convolutions with batch norm, then a dense layer."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 10),
    )  # fmt: skip


def main(epochs: int) -> None:
    """Train, with a validation after every epoch, then say which weights it has."""
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    images = images.float().reshape(-1, 1, 8, 8) / 16
    train, test = Digits(images[TEST:], labels[TEST:], True), Digits(images[:TEST], labels[:TEST], False)
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)

    with mm.Job(train, batch=128, lanes=4, reduction="exact") as job:
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, job.steps_in(epochs))
        clip = lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # noqa: E731
        model, optimizer, scheduler = mm.torch.wrap(model, optimizer, job, scheduler, after_sum=clip)
        loader = mm.torch.Loader(job, num_workers=1)  # reads ahead, augmented, in a process of its own

        def right(chunk):
            return (model(chunk[0]).argmax(1) == chunk[1]).sum()

        for epoch in job.epochs(epochs):  # begins where the job stands
            for x, y in loader:
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.bfloat16):
                    loss = cross_entropy(model(x), y)
                loss.backward()
                optimizer.step(loss=loss)
                scheduler.step()
            model.eval()
            with torch.no_grad():
                accuracy = job.evaluate(test, right) / len(test)  # divided among the workers
            model.train()
            if job.first:
                print(f"epoch {epoch}: test accuracy {accuracy:.1%}")

    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values()))
    print(f"weights {digest.hexdigest()[:16]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train on scikit-learn's digits.")
    parser.add_argument("--epochs", type=int, default=5)
    main(parser.parse_args().epochs)
