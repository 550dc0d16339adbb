"""A small Trainer class in PyTorch, with callbacks: a log file, the best weights kept, early stopping. Alone, or on
workers that may die:

    python examples/trainer_torch.py
    meshmend run -n 4 examples/trainer_torch.py

Callbacks are called on every worker, at the same points and with the same numbers, so all decide the same. What they
decide by is saved with the best weights: workers that join late and resumed runs find it there.
"""

import argparse
import hashlib

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import meshmend as mm

torch.set_num_threads(1)  # the workers share this machine's cores already
TEST = 360  # of 1797 samples


class Log:
    """Appends a line per epoch to a file: only the first worker does, and the next one goes on when it dies."""

    def __init__(self, job, path):
        self.file = mm.on_first(job, lambda: open(path, "a", buffering=1))  # noqa: SIM115

    def epoch_ended(self, trainer, epoch, scores):
        self.file.write(f"{epoch},{trainer.job.step},{scores['loss']:.4f},{scores['accuracy']:.4f}\n")


class Best:
    """Keeps the weights with the lowest loss as the checkpoint "best", and stops when that is `patience` epochs old."""

    def __init__(self, patience):
        self.patience = patience

    def epoch_ended(self, trainer, epoch, scores):
        kept = trainer.job.broadcast(trainer.job.saved("best"))  # also by a run that this one resumes
        if scores["loss"] < kept.get("loss", float("inf")):
            trainer.job.save("best", loss=scores["loss"], epoch=epoch)
        else:
            trainer.stop = epoch - kept.get("epoch", epoch) >= self.patience


class Trainer:
    """The loop, once and for all models."""

    def __init__(self, job, model, optimizer, loss_fn, callbacks=()):
        self.job, self.model, self.optimizer = job, model, optimizer
        self.loss_fn, self.callbacks, self.stop = loss_fn, callbacks, False
        job.share(model, optimizer)

    def fit(self, epochs, test):
        for epoch in self.job.epochs(epochs):  # begins where the job stands
            for _ in self.job.steps():
                loss = self.job.sum(self.backward)
                self.optimizer.step()
                self.job.commit(loss=loss)
            scores = self.evaluate(test)
            for callback in self.callbacks:
                callback.epoch_ended(self, epoch, scores)
            if self.stop:
                break  # on all workers, after the same step

    def backward(self, lane):
        loss = self.loss_fn(self.model(lane[0]), lane[1]) / self.job.lanes  # the sum over lanes is the mean
        loss.backward()
        return loss

    @torch.no_grad()
    def evaluate(self, test):
        self.model.eval()
        found = self.job.evaluate(test, self.scores)
        self.model.train()
        return {name: found[name] / found["count"] for name in ("loss", "accuracy")}

    def scores(self, chunk):
        guess, count = self.model(chunk[0]), len(chunk[1])
        right = (guess.argmax(1) == chunk[1]).sum()
        return {"loss": self.loss_fn(guess, chunk[1]) * count, "accuracy": right, "count": count}


def main(epochs: int, patience: int) -> None:
    """Train, then say which weights it has."""
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    images = images.float() / 16
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
    with mm.Job((images[TEST:], labels[TEST:]), batch=128, lanes=8, reduction="exact") as job:
        trainer = Trainer(job, model, optimizer, cross_entropy, [Log(job, "trainer.csv"), Best(patience)])
        trainer.fit(epochs, (images[:TEST], labels[:TEST]))
    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values()))
    print(f"weights {digest.hexdigest()[:16]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train on scikit-learn's digits.")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--patience", type=int, default=3)
    main(**vars(parser.parse_args()))
