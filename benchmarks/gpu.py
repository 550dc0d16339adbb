"""One worker on an accelerator: a training loop beside the same loop with `mm.Job`, and what the parts of it cost.

    python benchmarks/gpu.py [--framework torch,jax] [--model gpt,bert,resnet] [--size full|tiny] [--device cuda|cpu]
                             [--kinds bare,sync,job,exact,bf16] [--steps 30] [--turns 5] [--lanes 1]
                             [--out results.json]

Kinds take turns of `--steps` steps in one process; the table has the median step of each over all turns, and its ratio
to that of `bare` in the same turn (median and quartiles). Nothing is fetched in a step that a bare loop would not
fetch: the loss is read after each turn. `digest`, `snapshot` and `leaves` are measured alone.

    gpt      a transformer of 108 M parameters, batch 64 x 128 tokens       bert     334 M, batch 32 x 512
    resnet   ResNet-50, batch 256 (PyTorch with torchvision only)
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

OPTIONS: dict[str, dict[str, Any]] = {
    "job": {},
    "exact": {"reduction": "exact"},
    "bf16": {"wire": "bf16"},
}
"""Kinds besides `bare`, and what they give to `mm.Job`."""


@dataclass(frozen=True)
class Size:
    """A transformer."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    batch: int
    length: int

    @property
    def tokens(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Batches of random tokens: 16 of them."""
        rng = np.random.default_rng(0)
        return rng.integers(0, self.vocabulary, (16 * self.batch, self.length + 1))


SIZES = {
    "gpt": Size(12, 768, 12, 30522, 64, 128),
    "bert": Size(24, 1024, 16, 30522, 32, 512),
    "tiny": Size(2, 64, 2, 100, 8, 16),
    "deep": Size(12, 64, 2, 100, 4, 8),
}


class Loop:
    """A loop that can be run for some steps at a time."""

    def __init__(self, steps: Iterator[Any], wait: Callable[[], Any]) -> None:
        self._steps, self._wait = steps, wait

    def run(self, count: int) -> float:
        """Seconds of a step."""
        self._wait()
        began = time.perf_counter()
        for _ in range(count):
            next(self._steps)
        self._wait()
        return (time.perf_counter() - began) / count

    def rest(self) -> Iterator[Any]:
        """The steps that are left, of a loop that ends."""
        return self._steps


def torch_transformer(size: Size, device: Any) -> Any:
    import torch

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(
        size.width, size.heads, 4 * size.width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )

    class Transformer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(size.vocabulary, size.width)
            self.place = torch.nn.Parameter(torch.zeros(size.length, size.width))
            self.body = torch.nn.TransformerEncoder(layer, size.layers, enable_nested_tensor=False)
            self.head = torch.nn.Linear(size.width, size.vocabulary, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, tokens: Any) -> Any:
            mask = torch.nn.Transformer.generate_square_subsequent_mask(size.length, device=tokens.device)
            return self.head(self.body(self.embed(tokens) + self.place, mask=mask, is_causal=True))

    return Transformer().to(device)


def torch_loops(
    model_name: str, size: Size, device_name: str, kind: str, lanes: int, batch_of: int, until: int = 1 << 40,
    meet: Callable[[], None] = lambda: None,
) -> tuple[Any, ...]:  # fmt: skip
    """(loop, number of parameters, framework of a job or None); `meet` waits for other processes."""
    import torch

    import meshmend as mm

    device = torch.device(device_name)
    if model_name == "resnet":
        import torchvision

        torch.manual_seed(0)
        model = torchvision.models.resnet50().to(device, memory_format=torch.channels_last)
        rng = torch.Generator().manual_seed(0)
        batch = batch_of or 256
        images = torch.randn(2 * batch, 3, 224, 224, generator=rng).to(device)
        labels = torch.randint(0, 1000, (2 * batch,), generator=rng).to(device)
        data: Any = Columns((images.contiguous(memory_format=torch.channels_last), labels))

        def loss_of(rows: Any) -> Any:
            with torch.autocast(device.type, torch.bfloat16):
                return torch.nn.functional.cross_entropy(call(rows[0]), rows[1])

        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=device.type == "cuda")
    else:
        model = torch_transformer(size, device)
        batch = batch_of or size.batch
        data = Columns((torch.from_numpy(size.tokens).to(device),))

        def loss_of(rows: Any) -> Any:
            tokens = rows[0]
            with torch.autocast(device.type, torch.bfloat16):
                logits = call(tokens[:, :-1])
                return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device.type == "cuda")
    call = torch.nn.parallel.DistributedDataParallel(model) if kind == "ddp" else model
    held: list[Any] = []

    def bare() -> Iterator[Any]:
        step = 0
        while True:
            begin = step * batch % len(data)
            for lane in range(lanes):
                part = batch // lanes
                rows = data[np.arange(begin + lane * part, begin + (lane + 1) * part)]
                loss = loss_of(rows) / lanes
                loss.backward()
            if kind in ("sync", "meet"):
                wait()
                meet()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            yield loss

    def with_job() -> Iterator[Any]:
        def work(rows: Any) -> Any:
            loss = loss_of(rows) / lanes
            loss.backward()
            return loss.detach()

        with mm.Job(data, batch=batch, lanes=lanes, check=False, **OPTIONS[kind]) as job:
            job.share(model, optimizer, warm=lambda _, rows: work(rows))
            held.extend((job.training.framework, job))
            for _ in job.steps(until):
                loss = job.sum(work)
                optimizer.step()
                job.commit(loss=loss)
                yield loss

    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    count = sum(one.numel() for one in model.parameters())
    return Loop(with_job() if kind in OPTIONS else bare(), wait), count, held


class Columns:
    """Data that lies on the device."""

    def __init__(self, columns: tuple[Any, ...]) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns[0])

    def __getitem__(self, ids: Any) -> Any:
        begin = int(ids[0]) % (len(self) - len(ids) + 1)  # neighbours: a gather is not what is measured
        return tuple(column[begin : begin + len(ids)] for column in self._columns)


def jax_loops(
    size: Size, device_name: str, kind: str, lanes: int, batch_of: int, until: int = 1 << 40,
    meet: Callable[[], None] = lambda: None,
) -> tuple[Any, ...]:  # fmt: skip
    import jax
    import jax.numpy as jnp

    import meshmend as mm

    device = jax.devices("cpu" if device_name == "cpu" else "gpu")[0]
    rng = np.random.default_rng(0)
    width, heads = size.width, size.heads

    def normal(*shape: int) -> Any:
        return jax.device_put((rng.standard_normal(shape) * 0.02).astype(np.float32), device)

    def layer() -> dict[str, Any]:
        return {
            "qkv": normal(width, 3 * width), "out": normal(width, width), "up": normal(width, 4 * width),
            "down": normal(4 * width, width), "up_b": normal(4 * width), "down_b": normal(width),
            "qkv_b": normal(3 * width), "out_b": normal(width), "n1": normal(width) + 1, "n2": normal(width) + 1,
        }  # fmt: skip

    params = {
        "embed": normal(size.vocabulary, width), "place": normal(size.length, width),
        "layers": [layer() for _ in range(size.layers)], "norm": normal(width) + 1,
    }  # fmt: skip

    def norm(x: Any, scale: Any) -> Any:
        x = x.astype(jnp.float32)
        x = (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
        return (x * scale).astype(jnp.bfloat16)

    def forward(params: Any, tokens: Any) -> Any:
        half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
        x = half["embed"][tokens] + half["place"]
        for mine, full in zip(half["layers"], params["layers"], strict=True):
            y = norm(x, full["n1"]) @ mine["qkv"] + mine["qkv_b"]
            q, k, v = jnp.split(y.reshape(*y.shape[:2], heads, -1), 3, axis=-1)
            y = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape)
            x = x + y @ mine["out"] + mine["out_b"]
            y = norm(x, full["n2"]) @ mine["up"] + mine["up_b"]
            x = x + jax.nn.gelu(y) @ mine["down"] + mine["down_b"]
        return (norm(x, params["norm"]) @ half["embed"].T).astype(jnp.float32)

    def loss_of(params: Any, tokens: Any) -> Any:
        logits = jax.nn.log_softmax(forward(params, tokens[:, :-1]))
        return -jnp.take_along_axis(logits, tokens[:, 1:, None], axis=-1).mean()

    gradients = jax.jit(jax.value_and_grad(loss_of))

    def updated(state: Any, grads: Any) -> Any:
        count = state["count"] + 1
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], grads)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state["v"], grads)
        rate = 1e-4 * jnp.sqrt(1 - 0.999**count) / (1 - 0.9**count)
        params = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + 1e-8) - 1e-6 * p, state["params"], m, v)
        return {"params": params, "m": m, "v": v, "count": count}

    update = jax.jit(updated, donate_argnums=0)
    batch = batch_of or size.batch
    data = Columns((jax.device_put(size.tokens.astype(np.int32), device),))
    zeros = jax.tree.map(jnp.zeros_like, params)
    begun = {"params": params, "m": zeros, "v": jax.tree.map(jnp.zeros_like, params), "count": jnp.zeros(())}
    held: list[Any] = []
    last: list[Any] = [begun]

    def bare() -> Iterator[Any]:
        state, step = begun, 0
        while True:
            begin, part = step * batch % len(data), batch // lanes
            total = None
            for lane in range(lanes):
                rows = data[np.arange(begin + lane * part, begin + (lane + 1) * part)]
                loss, grads = gradients(state["params"], rows[0])
                total = grads if total is None else jax.tree.map(jnp.add, total, grads)
            if kind in ("sync", "meet"):
                jax.block_until_ready(total)
                meet()
            state = update(state, total)
            last[0] = state
            step += 1
            yield loss

    def warmed(state: Any, rows: Any) -> Any:
        """Compile what a newcomer needs while nobody waits for it."""
        found = gradients(state["params"], rows[0])
        jax.block_until_ready(update(jax.tree.map(jnp.copy, state), found[1]))
        return found

    def with_job() -> Iterator[Any]:
        with mm.Job(data, batch=batch, lanes=lanes, check=False, **OPTIONS[kind]) as job:
            state = job.share(begun, warm=warmed)
            held.extend((job.training.framework, job))
            for _ in job.steps(until):
                now = state
                loss, grads = job.sum(lambda rows, now=now: gradients(now["params"], rows[0]))
                del now
                state = update(state, grads)
                last[0] = state
                job.commit(state, loss=loss)
                yield loss

    def wait() -> None:
        jax.block_until_ready(last[0])

    return Loop(with_job() if kind in OPTIONS else bare(), wait), sum(x.size for x in jax.tree.leaves(params)), held


def parts(framework: Any, wait: Callable[[], Any]) -> dict[str, float]:
    """Milliseconds of what a job does now and then: medians of 5."""

    def timed(work: Callable[[], Any]) -> float:
        found = []
        for _ in range(6):
            wait()
            began = time.perf_counter()
            work()
            wait()
            found.append(1000 * (time.perf_counter() - began))
        return statistics.median(found[1:])

    return {
        "digest": timed(lambda: framework.digest_begun().value()),
        "digest, begun": timed(lambda: framework.digest_begun()),
        "snapshot": timed(framework.snapshot),
        "state to the host": timed(lambda: [np.asarray(leaf) for _, leaf in framework.leaves()]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", default="torch,jax")
    parser.add_argument("--model", default="gpt")
    parser.add_argument("--size", default="full", choices=["full", "tiny"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--kinds", default="bare,job")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--batch", type=int, default=0, help="another batch than the model's own")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    os.environ.setdefault("MESHMEND_LOG_EVERY", "never")
    os.environ.setdefault("MESHMEND_STATE", "device")
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.45")  # beside PyTorch
    rows = []
    for framework in args.framework.split(","):
        for model in args.model.split(","):
            if framework == "jax" and model == "resnet":
                continue
            rows += measured(framework, model, args)
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1))


def measured(framework: str, model: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each kind."""
    size = SIZES["tiny" if args.size == "tiny" else "gpt" if model == "resnet" else model]
    times: dict[str, list[float]] = {}
    more: dict[str, dict[str, float]] = {}
    loops: dict[str, tuple[Any, ...]] = {}
    for kind in args.kinds.split(","):
        if framework == "torch":
            loops[kind] = torch_loops(model, size, args.device, kind, args.lanes, args.batch)
        else:
            loops[kind] = jax_loops(size, args.device, kind, args.lanes, args.batch)
        loops[kind][0].run(5)
    for _ in range(args.turns):
        for kind, (loop, _, _) in loops.items():
            times.setdefault(kind, []).append(loop.run(args.steps))
    rows = []
    base = times.get("bare", next(iter(times.values())))
    print(f"\n{framework}, {model}: {loops[next(iter(loops))][1] / 1e6:.1f} M parameters on {device_name(framework)}")
    for kind, found in times.items():
        ratios = sorted(mine / bare for mine, bare in zip(found, base, strict=True))
        low, middle, high = (ratios[round(share * (len(ratios) - 1))] for share in (0.25, 0.5, 0.75))
        median = 1000 * statistics.median(found)
        print(f"  {kind:8} {median:8.2f} ms   {middle:.3f} ({low:.3f} to {high:.3f})")
        if loops[kind][2]:
            more[kind] = parts(loops[kind][2][0], loops[kind][0]._wait)
            print("           " + ", ".join(f"{name} {value:.2f} ms" for name, value in more[kind].items()))
        rows.append({"framework": framework, "model": model, "kind": kind, "ms": median, "ratio": middle,
                     "lanes": args.lanes, **more.get(kind, {})})  # fmt: skip
    sys.stdout.flush()
    return rows


def device_name(framework: str) -> str:
    if framework == "torch":
        import torch

        return torch.cuda.get_device_name() if torch.cuda.is_available() else "the processor"
    import jax

    return str(jax.devices()[0].device_kind)


if __name__ == "__main__":
    main()
