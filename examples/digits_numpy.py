"""Handwritten digits with numpy alone. Alone, or on workers that may die; both end with the same weights:

    python examples/digits_numpy.py
    meshmend run -n 4 examples/digits_numpy.py

A network of two layers with its gradients by hand, momentum, noise on the images, and a moving average of the weights.
"""

import argparse
import hashlib

import numpy as np
from sklearn.datasets import load_digits

import meshmend as mm

TEST, HIDDEN = 360, 64  # of 1797 samples


def init(seed: int = 0) -> dict[str, np.ndarray]:
    """Weights of both layers; the last row of each is its bias."""
    random = np.random.default_rng(seed)
    return {
        "hidden": random.normal(0, 0.2, (65, HIDDEN)).astype(np.float32),
        "scores": random.normal(0, 0.2, (HIDDEN + 1, 10)).astype(np.float32),
    }


def forward(weights, images):
    """Inputs of both layers, and the probabilities of the ten digits."""
    first = np.pad(images, ((0, 0), (0, 1)), constant_values=1)
    second = np.pad(np.maximum(first @ weights["hidden"], 0), ((0, 0), (0, 1)), constant_values=1)
    scores = second @ weights["scores"]
    exp = np.exp(scores - scores.max(1, keepdims=True))
    return first, second, exp / exp.sum(1, keepdims=True)


def gradient(weights, lane, draws):
    """Gradients of the cross-entropy, added up over the samples of a lane, and the loss."""
    images, labels = lane
    # `draws` are random numbers of the lane's own: whoever computes it draws the same.
    images = images + draws.rng.normal(0, 0.1, images.shape).astype(np.float32)
    first, second, chances = forward(weights, images)
    loss = -np.log(chances[np.arange(len(labels)), labels] + 1e-9).sum()
    chances[np.arange(len(labels)), labels] -= 1
    back = (chances @ weights["scores"].T * (second > 0))[:, :-1]
    return {"hidden": first.T @ back, "scores": second.T @ chances}, loss


def updated(state, grads, batch):
    """Momentum, and a moving average of the weights."""
    moved = {name: 0.9 * state["moments"][name] + grads[name] / np.float32(batch) for name in grads}
    weights = {name: state["weights"][name] - np.float32(0.1) * moved[name] for name in grads}
    average = {name: 0.98 * state["average"][name] + np.float32(0.02) * weights[name] for name in grads}
    return {"weights": weights, "moments": moved, "average": average}


def main(epochs: int) -> None:
    """Train, with a test after every epoch, then say which weights it has."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    train, test = (images[TEST:], labels[TEST:]), (images[:TEST], labels[:TEST])
    weights = init()
    zeros = {name: np.zeros_like(value) for name, value in weights.items()}
    with mm.Job(train, batch=128, lanes=8, reduction="exact") as job:
        state = job.share({"weights": weights, "moments": zeros, "average": weights})
        for epoch in job.epochs(epochs):  # begins where the job stands
            for _ in job.steps():
                grads, loss = job.sum(lambda lane, draws: gradient(state["weights"], lane, draws))  # noqa: B023
                state = updated(state, grads, job.batch)
                job.commit(state, loss=loss / job.batch)

            def right(chunk):
                return int((forward(state["average"], chunk[0])[2].argmax(1) == chunk[1]).sum())  # noqa: B023

            accuracy = job.evaluate(test, right) / len(test[1])  # divided among the workers
            if job.first:
                print(f"epoch {epoch}: test accuracy of the average {accuracy:.1%}")
    digest = hashlib.sha256(b"".join(state[part][name].tobytes() for part in state for name in weights))
    print(f"weights {digest.hexdigest()[:16]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train on scikit-learn's digits.")
    parser.add_argument("--epochs", type=int, default=20)
    main(parser.parse_args().epochs)
