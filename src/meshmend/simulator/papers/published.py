"""What was published about steps on TPU-v3, and how it sets the one free parameter of each model.

All minutes, batches, steps and cores per replica are those of Google's MLPerf logs (0.7 unless said), and of arXiv
2011.03641. The free parameter is the part of the peak that computing reaches. ResNet-50 and BERT are **calibrated** on
one point each, the time on 4096 chips over the number of steps. That time has evaluation in it, so a step took at most
that, and computing reached at least the part of the peak that follows. For SSD and Transformer the number of steps is
not known, so that nothing can be calibrated: they compute at the part of the peak of the model that is most like them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from meshmend.base.terminal import Tell
from meshmend.simulator.step.hardware import mesh_of
from meshmend.simulator.step.models import model
from meshmend.simulator.step.step import Setting, calibrate

MOST_EXAMPLES = {"resnet50": 256, "bert": 32, "ssd": 64, "transformer": 128}
"""Examples that a chip takes at most: an assumption. A batch is the published one, unless this makes it smaller."""
LIKE = {"ssd": "resnet50", "transformer": "bert"}
"""Whose part of the peak is taken where there is nothing to calibrate on."""


@dataclass(frozen=True)
class Published:
    """One published time."""

    model: str
    chips: int
    minutes: float
    source: str
    batch: int | None = None
    steps: int | None = None
    cores: int = 1

    @property
    def step(self) -> float | None:
        """At most so many seconds per step, where the number of steps is known."""
        return 60 * self.minutes / self.steps if self.steps else None


PUBLISHED = (
    Published("resnet50", 4096, 0.481, "TensorFlow", 65536, 1720),
    Published("resnet50", 4096, 0.472, "JAX", 65536, 1720),
    Published("bert", 4096, 0.393, "TensorFlow", 8192, 496),
    Published("bert", 4096, 0.400, "JAX", 8192, 496),
    Published("ssd", 4096, 0.462, "TensorFlow", 4096, cores=8),
    Published("ssd", 2048, 0.547, "JAX", 4096, cores=4),
    Published("transformer", 4096, 0.355, "TensorFlow", 2048, cores=4),
    Published("transformer", 4096, 0.258, "JAX", 2048, cores=4),
    *(
        Published("resnet50", chips, minutes, "MLPerf 0.6")
        for chips, minutes in ((1024, 1.28), (512, 2.27), (256, 3.85), (128, 6.86), (64, 11.22), (16, 42.19))
    ),
)


def first(name: str) -> Published:
    """The point of a model on 4096 chips: what it is calibrated on, where that can be done."""
    return next(point for point in PUBLISHED if point.model == name)


def batch_on(name: str, chips: int) -> int:
    """The published batch, or as many examples as the chips can take."""
    return min(first(name).batch or 0, MOST_EXAMPLES[name] * chips)


def setting_of(point: Published, of_peak: float) -> Setting:
    """How that point was run: 2-D sums in bf16, the update sharded."""
    return Setting(
        model=model(point.model),
        mesh=mesh_of(point.chips),
        batch=point.batch or batch_on(point.model, point.chips),
        of_peak=of_peak,
        algorithm="rowcol",
        shard_update=True,
        cores=point.cores,
    )


def rates_of(models: Sequence[str], given: Mapping[str, float] | None, tell: Tell) -> dict[str, float]:
    """The part of the peak of each model: as given, or else calibrated."""
    rates = {}
    for name in models:
        tell(f"calibrating {model(name).title}")
        rates[name] = given[name] if given else calibrated(name)
    return rates


@cache
def calibrated(name: str) -> float:
    """The part of the peak that a model reaches, by its own point or by that of the one most like it."""
    point = first(LIKE.get(name, name))
    assert point.step
    return calibrate(setting_of(point, 1.0), point.step)
