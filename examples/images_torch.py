"""Images from a folder: decoded once per host, cropped and flipped at random after the cache, for a small ResNet.

    python examples/images_torch.py
    meshmend run -n 3 examples/images_torch.py

The three workers share one cache, and end with the same weights as one alone. There are no images at hand, so it draws
some first, in the working directory.
"""

import argparse
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import nn
from torch.nn.functional import cross_entropy

import meshmend as mm

torch.set_num_threads(1)  # the workers share this machine's cores already
SIDE, CROP = 40, 32


def draw(folder, count):
    """Circles, crosses and squares, one folder each; all or nothing, because several workers may come at once."""
    if folder.exists():
        return
    fresh, random = Path(tempfile.mkdtemp(dir=folder.parent)), np.random.default_rng(0)
    for number in range(count):
        kind = ("circle", "cross", "square")[number % 3]
        image = Image.fromarray(random.integers(0, 90, (SIDE + 8, SIDE + 8, 3), dtype=np.uint8))
        pen, colour = ImageDraw.Draw(image), tuple(random.integers(130, 256, 3).tolist())
        x, y, size = random.integers([8, 8, 14], [20, 20, 22]).tolist()
        if kind == "circle":
            pen.ellipse((x, y, x + size, y + size), outline=colour, width=3)
        elif kind == "square":
            pen.rectangle((x, y, x + size, y + size), outline=colour, width=3)
        else:
            pen.line((x, y, x + size, y + size), colour, 3)
            pen.line((x, y + size, x + size, y), colour, 3)
        (fresh / kind).mkdir(exist_ok=True)
        image.save(fresh / kind / f"{number}.jpg")
    try:
        os.rename(fresh, folder)
    except OSError:  # another worker was quicker
        shutil.rmtree(fresh)


def scale(lane):
    """A whole lane at once: channels first, and numbers around 0."""
    images, labels = lane
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2), np.float32) / np.float32(255) - np.float32(0.5), labels


class Block(nn.Module):
    """Half the side, and what came in is added to what the convolutions make of it."""

    def __init__(self, inside, outside):
        super().__init__()
        self.first, self.second = nn.Conv2d(inside, outside, 3, 2, 1), nn.Conv2d(outside, outside, 3, 1, 1)
        self.norm, self.around = nn.BatchNorm2d(outside), nn.Conv2d(inside, outside, 1, 2)

    def forward(self, images):
        """One block."""
        return torch.relu(self.second(torch.relu(self.norm(self.first(images)))) + self.around(images))


def main(steps: int, count: int) -> None:
    """Train, then say which weights it has."""
    folder = Path(f"shapes-{count}")
    draw(folder, count)
    data = mm.data.images(folder, size=SIDE, on_error="skip").cache("100MB")
    data = data.map(mm.data.random_crop(CROP, mirror=True)).map_lane(scale).map_lane(mm.torch.tensors)
    torch.manual_seed(0)
    model = nn.Sequential(Block(3, 16), Block(16, 32), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)

    with mm.Job(data, batch=48, lanes=6, reduction="exact") as job:
        job.share(model, optimizer)

        def backward(lane):
            images, labels = lane
            loss = cross_entropy(model(images), labels) / job.lanes
            loss.backward()
            return loss

        for _ in job.steps(steps):
            loss = job.sum(backward)
            optimizer.step()
            job.commit(loss=loss)
    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values()))
    print(f"weights {digest.hexdigest()[:16]}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--images", type=int, default=600)
    options = parser.parse_args()
    main(options.steps, options.images)
