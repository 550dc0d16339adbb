"""A GAN in PyTorch: two models, two optimizers and an average of the generator in one job. Alone, or on workers:

    python examples/gan_torch.py
    meshmend run -n 4 examples/gan_torch.py

The generator learns to draw points on a ring, the critic to tell them from real ones. Whoever dies, all end with the
same weights.
"""

import argparse
import hashlib
import math

import torch
from torch import nn
from torch.nn.functional import softplus
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import meshmend as mm

torch.set_num_threads(1)  # the workers share this machine's cores already
NOISE = 8
RADIUS = 2.0


def ring(count: int):
    """Points near a circle."""
    angle, off = 2 * math.pi * torch.rand(count), 0.05 * torch.randn(count)
    return (RADIUS + off)[:, None] * torch.stack([angle.cos(), angle.sin()], 1)


def network(inputs: int, outputs: int):
    """Dense layers: the generator from noise to a point, the critic from a point to a score."""
    hidden = nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2)
    return nn.Sequential(*hidden, nn.Linear(64, outputs))


def main(steps: int) -> None:
    """Train both, then say which weights they have."""
    torch.manual_seed(0)
    points = ring(4096)
    generator, critic = network(NOISE, 2), network(2, 1)
    moves = torch.optim.Adam(generator.parameters(), lr=0.001, betas=(0.5, 0.9))
    judges = torch.optim.Adam(critic.parameters(), lr=0.002, betas=(0.5, 0.9))
    average = AveragedModel(generator, multi_avg_fn=get_ema_multi_avg_fn(0.98))  # EMA: calmer than the generator

    with mm.Job(points, batch=256, lanes=4, reduction="exact") as job:
        job.share(generator, critic, moves, judges, average)

        def backward(real):
            # Random numbers in a lane depend on seed, step and lane: whoever computes it draws the same.
            fake = generator(torch.randn(len(real), NOISE))
            judged = softplus(-critic(real)).mean() + softplus(critic(fake.detach())).mean()
            (judged / job.lanes).backward()
            fooled = softplus(-critic(fake)).mean()
            (fooled / job.lanes).backward(inputs=list(generator.parameters()))  # and not into the critic
            off = (fake.detach().norm(dim=1) - RADIUS).abs().mean()
            return {"critic": judged / job.lanes, "generator": fooled / job.lanes, "off": off / job.lanes}

        for _ in job.steps(steps):
            told = job.sum(backward)  # one sum for both models
            judges.step()
            moves.step()
            average.update_parameters(generator)  # between sum and commit, as all that changes the state
            job.commit(**told)

    tensors = [value for model in (generator, critic, average) for value in model.state_dict().values()]
    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in tensors))
    print(f"weights {digest.hexdigest()[:16]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Learn to draw points on a ring.")
    parser.add_argument("--steps", type=int, default=400)
    main(parser.parse_args().steps)
