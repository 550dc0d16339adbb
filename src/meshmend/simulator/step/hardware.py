"""What computes: the figures of a chip, its memory, its links and its host that a step's time follows from.

Peak rates, memory bandwidth and cores are public figures of the hardware; the links are those of `meshmend.LINKS`.
What a program reaches of the peak is not among them: that is `of_peak`, which is always stated. The rate of a host's
input is an assumption, and said to be one where it matters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from meshmend.base.registry import Registry
from meshmend.errors import SimulateError
from meshmend.mesh import Mesh
from meshmend.mesh.planners import LINKS, LinkSpeed

POD_COLS = 32
"""The side of a TPU-v3 pod; more than one pod is wrapped along it, and only along it."""


@dataclass(frozen=True)
class Machine:
    """A kind of chip, in chips that each hold one or more cores; a core has its own memory."""

    name: str
    about: str
    peak: float
    """FLOP/s of a core."""
    memory: float
    """Bytes/s between a core and its memory."""
    cores: int
    """Cores of a chip."""
    link: LinkSpeed
    host_chips: int
    """Chips that a host feeds."""
    host_input: float
    """Bytes/s of examples that a host gives to its chips: an assumption."""
    begin: float = 0.0
    """Seconds that a collective inside a step takes to begin, beyond the latency of its links."""
    meshed: bool = True
    """Whether links join neighbours; else each chip has one line to a switch, and only a ring is simulated."""

    def __post_init__(self) -> None:
        for what in ("peak", "memory", "cores", "host_chips", "host_input"):
            value = getattr(self, what)
            if not 0 < value < math.inf:
                raise SimulateError(f"a machine with {what}={value}: it must be positive and finite")


MACHINES: Registry[Machine] = Registry(
    "machine",
    SimulateError,
    {
        "tpu-v3": Machine(
            "tpu-v3",
            "123 TFLOP/s in bf16 and 900 GB/s of memory per chip of two cores; hosts of 8 chips",
            peak=123e12 / 2,
            memory=900e9 / 2,
            cores=2,
            link=LINKS["tpu-v3"],
            host_chips=8,
            host_input=8e9,
            begin=15.8e-6,
        ),
        "cpu-cluster": Machine(
            "cpu-cluster",
            "one worker per host of two server processors: 2 TFLOP/s in float32, 150 GB/s of memory, "
            "100 Gbit/s to a switch",
            peak=2e12,
            memory=150e9,
            cores=1,
            # A worker's one line serves both of its neighbours in the ring.
            link=replace(LINKS["ethernet-100g"], bandwidth=LINKS["ethernet-100g"].bandwidth / 2),
            host_chips=1,
            host_input=1e9,
            meshed=False,
        ),
    },
)


def machine(name: str) -> Machine:
    """A machine by name."""
    return MACHINES.find(name)


def mesh_of(chips: int) -> Mesh:
    """The mesh that so many chips form: as square as can be. A whole pod is a torus; a row of pods is wrapped along
    their side; a slice of a pod is not wrapped.
    """
    if chips < 1:
        raise SimulateError(f"{chips} chips: a mesh has at least 1")
    if chips == POD_COLS**2:
        return Mesh(POD_COLS, POD_COLS, (True, True))
    if chips > POD_COLS**2 and chips % POD_COLS == 0:
        return Mesh(chips // POD_COLS, POD_COLS, (False, True))
    rows = next(rows for rows in range(math.isqrt(chips), 0, -1) if chips % rows == 0)
    return Mesh(rows, chips // rows)
