"""What decoding costs, and what a cache saves: real JPEGs of 224x224, made by Pillow.

    python benchmarks/input.py            three ways to read them: images per second of one core, and how long a small
                                          ResNet waits for them, alone and on two workers (--framework jax: in JAX)

Decoded each time, cached as the files are (compressed), and cached as they are decoded (uncompressed); each is cropped
at random afterwards, and in the last line mirrored half of the time, which costs more than the crop. Images per second
are per second of processor time, so what else the machine does hardly matters; the stall is of the clock, so for that
the machine must be quiet.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import meshmend as mm

SIDE, CROP = 224, 192
ONE_THREAD = {**os.environ, "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "JAX_PLATFORMS": "cpu"}
WAYS = ("decoded each time", "cached compressed", "cached uncompressed", "  and mirrored")


def draw(folder: Path, count: int) -> float:
    """Images with large shapes and fine noise, of some 20 kB each; the mean size of a file."""
    from PIL import Image

    random = np.random.default_rng(0)
    sizes = []
    for number in range(count):
        coarse = Image.fromarray(random.integers(0, 256, (14, 14, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC), np.int16)
        noise = random.normal(0, 8, (SIDE, SIDE, 1)).astype(np.int16)
        path = folder / str(number % 10) / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray((smooth + noise).clip(0, 255).astype(np.uint8)).save(path, quality=90)
        sizes.append(path.stat().st_size)
    return float(np.mean(sizes))


def data(way: str, folder: Path) -> mm.data.Data:
    """One of the three pipelines."""
    crop = mm.data.random_crop(CROP, mirror=way == WAYS[3])
    if way == WAYS[1]:
        return mm.data.images(folder, decode=False).cache("1GB").map(mm.data.decode_image()).map(crop)
    images = mm.data.images(folder)
    return (images if way == WAYS[0] else images.cache("1GB")).map(crop)


def speed(way: str, folder: Path, seconds: float) -> float:
    """Images per second of processor time, in lanes of 32, once the cache is full."""
    source = data(way, folder)
    count = len(source)
    source[np.arange(count)]
    random, began, done = np.random.default_rng(0), time.process_time(), 0
    while time.process_time() - began < seconds:
        source[random.integers(0, count, 32)]
        done += 32
    return done / (time.process_time() - began)


TRAIN = """
import sys
from pathlib import Path
import numpy as np, torch
from torch import nn
from torch.nn.functional import cross_entropy
import meshmend as mm
sys.path.insert(0, {here!r})
from input import data

torch.set_num_threads(1)
torch.manual_seed(0)

class Block(nn.Module):
    def __init__(self, inside, outside):
        super().__init__()
        self.first, self.second = nn.Conv2d(inside, outside, 3, 2, 1), nn.Conv2d(outside, outside, 3, 1, 1)
        self.norm, self.around = nn.BatchNorm2d(outside), nn.Conv2d(inside, outside, 1, 2)

    def forward(self, x):
        return torch.relu(self.second(torch.relu(self.norm(self.first(x)))) + self.around(x))

def scale(lane):
    return torch.from_numpy(lane[0]).permute(0, 3, 1, 2).float() / 255 - 0.5, torch.from_numpy(lane[1])

model = nn.Sequential(nn.Conv2d(3, 16, 7, 2, 3), Block(16, 32), Block(32, 64), Block(64, 128),
                      nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with mm.Job(data({way!r}, Path({folder!r})).read_ahead(4, threads=1), batch=32, lanes=4) as job:
    job.share(model, optimizer)
    def backward(lane):
        images, labels = scale(lane)
        loss = cross_entropy(model(images), labels) / job.lanes
        loss.backward()
        return loss
    for step in job.steps({steps}):
        loss = job.sum(backward)
        optimizer.step()
        job.commit(loss=loss)
"""


TRAIN_JAX = """
import sys
from pathlib import Path
import jax, jax.numpy as jnp, numpy as np
import meshmend as mm
sys.path.insert(0, {here!r})
from input import data

def conv(x, kernel, stride):
    return jax.lax.conv_general_dilated(x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

def block(x, one):
    y = conv(x, one["first"], 2)
    y = jax.nn.relu((y - y.mean((0, 1, 2))) / jnp.sqrt(y.var((0, 1, 2)) + 1e-5))
    return jax.nn.relu(conv(y, one["second"], 1) + conv(x, one["around"], 2))

def loss(weights, lane):
    images, labels = lane
    x = conv(images.astype(jnp.float32) / 255 - 0.5, weights["begin"], 2)
    for one in weights["blocks"]:
        x = block(x, one)
    scores = jax.nn.log_softmax(x.mean((1, 2)) @ weights["end"])
    return -jnp.take_along_axis(scores, labels[:, None], 1).sum()

random = np.random.default_rng(0)
def made(*shape):
    return jnp.asarray(random.normal(size=shape, scale=np.prod(shape[:-1]) ** -0.5).astype(np.float32))

def made_block(n):
    return dict(first=made(3, 3, n, 2 * n), second=made(3, 3, 2 * n, 2 * n), around=made(1, 1, n, 2 * n))

weights = dict(begin=made(7, 7, 3, 16), end=made(128, 10), blocks=[made_block(n) for n in (16, 32, 64)])
grad = jax.jit(jax.value_and_grad(loss))
with mm.Job(data({way!r}, Path({folder!r})).read_ahead(4, threads=1), batch=32, lanes=4) as job:
    weights = job.share(weights)
    for step in job.steps({steps}):
        total, grads = job.sum(lambda lane: jax.block_until_ready(grad(weights, lane)))
        weights = jax.tree.map(lambda w, g: w - 0.01 / 32 * g, weights, grads)
        job.commit(weights, loss=total / job.batch)
"""
SCRIPTS = {"torch": TRAIN, "jax": TRAIN_JAX}


def stall(way: str, folder: Path, steps: int, workers: int, framework: str) -> tuple[float, float]:
    """The share of the steps after the first epoch in which the workers waited for input, and images per second."""
    from meshmend.telemetry import Committed, read

    with tempfile.TemporaryDirectory() as place:
        script = Path(place) / "train.py"
        script.write_text(
            SCRIPTS[framework].format(here=str(Path(__file__).parent), way=way, folder=str(folder), steps=steps)
        )
        command = [sys.executable, "-m", "meshmend", "run", "-n", str(workers), "--name", "input", str(script)]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=1800, env=ONE_THREAD)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        lines = [event for event in read(Path(place) / "runs" / "input") if isinstance(event, Committed)]
    first = -(-len(data(WAYS[0], folder)) // 32)
    waited = whole = 0.0
    for rank in range(workers):
        own = [line for line in lines if line.rank == rank and line.step >= first]
        waited += sum(line.stall for line in own[1:])
        whole += own[-1].time - own[0].time
    return waited / whole, 32 * (steps - first - 1) * workers / whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=3.0, help="processor time for each speed")
    parser.add_argument("--steps", type=int, default=40, help="of the ResNet; 0: no training")
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--framework", choices=SCRIPTS, default="torch")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        size = draw(folder, options.images)
        print(f"{options.images} JPEGs of {SIDE}x{SIDE}, {size / 1e3:.0f} kB each, {SIDE * SIDE * 3 / 1e3:.0f} decoded")
        speeds = [speed(way, folder, options.seconds) for way in WAYS]
        for way, images in zip(WAYS, speeds, strict=True):
            line = f"{way:20} {images:9,.0f} images/s per core  {images / speeds[0]:5.1f} times"
            for workers in options.workers if options.steps and way != WAYS[3] else []:
                share, rate = stall(way, folder, options.steps, workers, options.framework)
                line += f"  {workers} worker{'s' * (workers > 1)}: stall {100 * share:.2f} %, {rate:,.0f} images/s"
            print(line, flush=True)


if __name__ == "__main__":
    main()
