"""One training step: computing, what of the gradient sum is not hidden, the weight update, and input.

* **compute**: `ceil(batch / replicas)` examples on each replica, forward and backward, at `of_peak` of the peak. A core
  has nothing less than an example to do, so replicas beyond the examples are idle: model parallelism is for that.
* **fixed**: what a replica's work takes however few examples it has: kernels that are started, weights that are read,
  shapes that are padded. Model parallelism divides it as it divides the work.
* **inside**: what the chips of one replica send each other, and batch norm over several of them (`model_parallel.py`).
* **sum**: the time of the plan on the mesh, for the gradients on the wire: simulated chunk by chunk on up to 1024 chips
  where that is asked for (`simulated`), else predicted from the plan's loads and hops, up to about 10 % shorter.
* **hidden**: the part of the sum that runs during the backward pass. Layers finish from the last to the first,
  and each one's gradients queue for the links as soon as they exist. A sharded update hides only the reducing half.
* **update**: bytes that the optimiser reads and writes, at the memory's bandwidth. Sharded, each chip updates the
  weights of which it is the root, between reducing and gathering, and the links carry weights back instead of sums: as
  many bytes. Trees get a root on every chip for that; the busiest root, and norms of whole layers, are waited for
  (`update.py`).
* **input**: what the host's input takes beyond all of that; else it is hidden.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from meshmend.errors import SimulateError
from meshmend.mesh import Mesh
from meshmend.mesh.planners import ALGORITHMS, LinkSpeed, Plan, seconds, spread_roots
from meshmend.mesh.planners.plan import largest_share, there_and_back
from meshmend.simulator.network.network import simulate
from meshmend.simulator.step.hardware import MACHINES, Machine
from meshmend.simulator.step.model_parallel import coarse, divided_sum, inside, norm_seconds, tile
from meshmend.simulator.step.models import WIRES, Model
from meshmend.simulator.step.models.layers import BACKWARD
from meshmend.simulator.step.update import moving, waiting

MOST_SIMULATED = 1024
"""Chips: the schemes with a flow for each chip have more transfers than chips squared."""
CACHED = 256
"""Sums that are remembered."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is trained on what, and how."""

    model: Model
    mesh: Mesh
    batch: int
    """Examples per step, on all chips together."""
    of_peak: float
    """The part of the peak rate that computing reaches."""
    machine: Machine = MACHINES["tpu-v3"]
    algorithm: str = "trees"
    wire: str = "bf16"
    payload: float | None = None
    """Bytes that are summed, instead of those of the model's gradients."""
    shard_update: bool = False
    cores: int = 1
    """Cores per replica: more than 1 is model parallelism."""
    hide: bool = False
    """Whether sums run during the backward pass."""
    simulated: bool = False
    """Whether the sum is simulated chunk by chunk, which takes seconds."""
    fixed: float = 0.0
    """Seconds that a replica's work takes however few examples it has, on one core."""
    norm_span: int = 0
    """Images that share the statistics of batch norm; 0 if those of one replica do."""

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise SimulateError(f"a batch of {self.batch}: a step needs at least 1 example")
        if not 0 < self.of_peak <= 1:
            raise SimulateError(
                f"of_peak={self.of_peak}: the fraction of the peak must be above 0 and at most 1, such as 0.3"
            )
        if not 0 <= self.fixed < math.inf:
            raise SimulateError(f"fixed={self.fixed}: the fixed time of a step must be finite and 0 or more")
        if self.algorithm not in ALGORITHMS:
            raise SimulateError(f"unknown algorithm {self.algorithm!r}; choose from {', '.join(ALGORITHMS)}")
        if not ALGORITHMS[self.algorithm].through_switch and not self.machine.meshed:
            fit = ", ".join(ALGORITHMS.where(lambda planner: planner.through_switch))
            raise SimulateError(
                f"{self.algorithm} needs a mesh, and {self.machine.name} has a switch: take {fit}, or another machine"
            )
        WIRES.find(self.wire)
        if self.payload is not None and not 0 < self.payload < math.inf:
            raise SimulateError(f"a payload of {self.payload:g} bytes: a sum has at least 1 byte and is finite")
        allowed = [2**power for power in range(self.model.most_cores.bit_length())]
        if self.cores not in allowed:
            raise SimulateError(
                f"{self.cores} cores per replica: {self.model.title} can have {', '.join(map(str, allowed))}"
            )
        if self.cores > self.machine.cores * len(self.mesh.live):
            raise SimulateError(
                f"{self.cores} cores per replica: {self.mesh} has {self.machine.cores * len(self.mesh.live)} cores, "
                "so take more chips or fewer cores per replica"
            )

    @property
    def chips(self) -> int:
        """Live chips."""
        return len(self.mesh.live)

    @property
    def replicas(self) -> int:
        """Copies of the model, each with its own part of the batch."""
        return self.machine.cores * self.chips // self.cores

    @property
    def examples(self) -> int:
        """Examples of the busiest replica."""
        return math.ceil(self.batch / self.replicas)


@dataclass(frozen=True)
class Step:
    """Seconds of one step, part by part."""

    batch: int
    compute: float
    fixed: float
    inside: float
    sum: float
    hidden: float
    update: float
    input: float

    @property
    def exposed(self) -> float:
        """What of the sum the chips wait for."""
        return self.sum - self.hidden

    @property
    def total(self) -> float:
        """Seconds from one step to the next."""
        return self.compute + self.fixed + self.inside + self.exposed + self.update + self.input

    @property
    def throughput(self) -> float:
        """Examples per second."""
        return self.batch / self.total


def step(setting: Setting) -> Step:
    """How long one step takes, and what for."""
    model, machine = setting.model, setting.machine
    compute = setting.examples * model.work(setting.cores) / (machine.peak * setting.of_peak)
    fixed = setting.fixed * model.part(setting.cores) if setting.fixed else 0.0
    within = inside(model, machine, setting.mesh, setting.cores, setting.examples)
    within += norm_seconds(model, machine, setting.cores, setting.examples, setting.norm_span)
    whole = _sum(setting)
    hidden = _hidden(setting, compute + fixed, whole) if setting.hide else 0.0
    done = Step(setting.batch, compute, fixed, within, whole, hidden, _update(setting, whole), 0.0)
    host = setting.batch / setting.chips * machine.host_chips * model.input_bytes / machine.host_input
    return replace(done, input=max(0.0, host - done.total))


def _sum(setting: Setting) -> float:
    """All cores that hold the same weights sum their gradients; the cores of one chip do so in its memory."""
    if setting.chips == 1:
        return 0.0
    chips = tile(setting.cores, setting.machine)
    payload = setting.payload or setting.model.gradient_bytes(setting.wire)
    sharded = payload * setting.model.sharded / setting.model.summed
    if chips == 1 or not sharded:
        exact = setting.simulated and setting.chips <= MOST_SIMULATED
        return sum_seconds(setting.mesh, setting.algorithm, payload, setting.machine.link, exact, setting.shard_update)
    return divided_sum(
        setting.mesh, setting.algorithm, payload - sharded + sharded / chips, setting.machine.link, chips
    )


@lru_cache(CACHED)
def sum_seconds(
    mesh: Mesh, algorithm: str, nbytes: float, link: LinkSpeed, simulated: bool = False, spread: bool = False
) -> float:
    """One all-reduce, with roots spread for a sharded update; remembered, for tables ask for the same again."""
    plan = plan_of(mesh, algorithm, spread)
    return simulate(plan, nbytes, link).seconds if simulated else seconds(plan, nbytes, link)


@lru_cache(8)
def plan_of(mesh: Mesh, algorithm: str, spread: bool = False) -> Plan:
    """One plan, its roots spread where they can be; the last few are remembered, for one of 4096 chips is large."""
    plan = ALGORITHMS[algorithm](mesh)
    return spread_roots(plan) if spread and there_and_back(plan) else plan


def _hidden(setting: Setting, compute: float, whole: float) -> float:
    """What of the sum is over when the backward pass is."""
    layers, cores = setting.model.layers, setting.cores
    work = sum(layer.flops * layer.part(cores) for layer in layers)
    backward = compute * BACKWARD / (1 + BACKWARD)
    hideable = whole / 2 if setting.shard_update else whole
    now = sent = 0.0
    for layer in reversed(layers):
        now += backward * layer.flops * layer.part(cores) / work
        if layer.summed:
            sent = max(sent, now) + hideable * layer.params / setting.model.summed
    return max(0.0, hideable - max(0.0, sent - backward))


def _update(setting: Setting, whole: float) -> float:
    """Whole on every core, or each chip's share and what that waits for."""
    model, machine = setting.model, setting.machine
    chips = tile(setting.cores, machine) if model.sharded else 1
    mesh = coarse(setting.mesh, chips)
    if not setting.shard_update or mesh.size == 1:
        part = 1 / setting.replicas if setting.shard_update else 1.0
        return moving(model, setting.cores, part, machine.memory)
    largest, overlap = _roots(mesh, setting.algorithm, chips == 1)
    part = largest * len(mesh.live) / setting.replicas
    return moving(model, setting.cores, part, machine.memory) + waiting(model, mesh, whole, machine.link, overlap)


@lru_cache(CACHED)
def _roots(mesh: Mesh, algorithm: str, spread: bool) -> tuple[float, bool]:
    """The busiest root's share of a plan, and whether it broadcasts while it reduces."""
    plan = plan_of(mesh, algorithm, spread)
    return largest_share(plan), plan.overlap
