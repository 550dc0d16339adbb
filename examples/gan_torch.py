"""A GAN in PyTorch: two models, two optimizers and two sums in each step of one job. Alone, or on workers:

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

        def judge(real):
            # Random numbers in a lane depend on seed, step, lane and sum: whoever computes it draws the same.
            fake = generator(torch.randn(len(real), NOISE)).detach()
            judged = (softplus(-critic(real)).mean() + softplus(critic(fake)).mean()) / job.lanes
            judged.backward()
            return judged

        def fool(real):
            fake = generator(torch.randn(len(real), NOISE))
            fooled = softplus(-critic(fake)).mean() / job.lanes
            fooled.backward()
            return {"generator": fooled, "off": (fake.norm(dim=1) - RADIUS).abs().mean() / job.lanes}

        for _ in job.steps(steps):
            judged = job.sum(judge)
            judges.step()
            told = job.sum(fool)  # by the new critic, whose own gradients nobody takes
            moves.step()
            average.update_parameters(generator)  # before the commit, as all that changes the state
            job.commit(critic=judged, **told)

    tensors = [value for model in (generator, critic, average) for value in model.state_dict().values()]
    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in tensors))
    print(f"weights {digest.hexdigest()[:16]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Learn to draw points on a ring.")
    parser.add_argument("--steps", type=int, default=400)
    main(parser.parse_args().steps)
