"""What a dead host costs a step: ResNet-50 and BERT on 512 and 1024 chips, by ring, row pairs and trees.

The question of arXiv 2011.03605. Each live chip keeps its examples (as many as in the published runs on 4096 chips, the
most that the sum can weigh), so that the loss of throughput has two parts: the chips that are gone, which no plan
brings back, and the sum, which takes another way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from meshmend.base.terminal import SILENT, Tell, notes, table
from meshmend.base.units import milliseconds as ms
from meshmend.base.units import percent
from meshmend.mesh import Mesh
from meshmend.mesh.planners import ALGORITHMS
from meshmend.simulator.papers.calibrated import rates_of
from meshmend.simulator.papers.charts import Loss, draw_holes
from meshmend.simulator.papers.published import Published, published
from meshmend.simulator.step.models import model
from meshmend.simulator.step.run import Rates
from meshmend.simulator.step.step import Setting, Step, step

BIGGEST = "4096 0.7 TF"
"""The published run whose examples per chip are taken."""
MESHES = (("16x32", "16x32 -host@8,12"), ("32x32", "32x32 -host@12,16"))


@dataclass(frozen=True)
class Row:
    """One model on one mesh by one algorithm, whole and with the hole."""

    model: str
    whole_mesh: str
    hole_mesh: str
    algorithm: str
    chips: int
    live: int
    whole: Step
    hole: Step
    whole_hidden: Step
    """The same with the sum hidden in the backward pass as far as it goes."""
    hole_hidden: Step

    @property
    def loss(self) -> float:
        """The part of the throughput that the dead host costs, with nothing hidden."""
        return 1 - self.hole.throughput / self.whole.throughput

    @property
    def loss_hidden(self) -> float:
        """The same with the sum hidden."""
        return 1 - self.hole_hidden.throughput / self.whole_hidden.throughput

    @property
    def gone(self) -> float:
        """The part of the chips that is dead."""
        return 1 - self.live / self.chips


@dataclass(frozen=True)
class Holes:
    """The table."""

    rows: tuple[Row, ...]
    rates: dict[str, Rates]
    examples: dict[str, int]
    """Examples per chip."""

    def render(self) -> str:
        """As text."""
        heads = (
            "model", "mesh with its hole", "by", "live\nchips", "sum\nwhole", "sum\nhole", "step\nwhole", "step\nhole",
            "examples/s\nhole", "throughput\nloss", "of it\nchips", "of it\nrest", "loss, sum\nhidden",
        )  # fmt: skip
        cells = [
            (
                model(row.model).title, row.hole_mesh, row.algorithm, f"{row.live}",
                ms(row.whole.sum), ms(row.hole.sum), ms(row.whole.total), ms(row.hole.total),
                f"{row.hole.throughput:,.0f}", percent(row.loss), percent(row.gone),
                percent(row.loss - row.gone, sign=True), percent(row.loss_hidden),
            )
            for row in self.rows
        ]  # fmt: skip
        rates = ", ".join(
            f"{model(name).title} {percent(one.of_peak)} and {ms(one.fixed)} ms" for name, one in self.rates.items()
        )
        each = ", ".join(f"{model(name).title} {count}" for name, count in self.examples.items())
        return "\n".join(
            [
                "What a dead host costs a step on TPU-v3 (times in ms)",
                table(heads, cells, left=3),
                notes(
                    f"compute at this part of the peak, and a fixed time per step: {rates}; calibrated on published "
                    "steps of 16 and 4096 chips (docs/results/multipod.md)",
                    "sums predicted from the plans' loads and hops over links of 80 GB/s and 1 µs: simulated ones are "
                    "up to about 10 % longer, but how their chunks fall differs by more than what a hole costs",
                    "rest: sum and update. The sharded update waits for the busiest root, and for norms of layers; "
                    "the chunks of trees have roots on all chips, so that each chip updates its share",
                    f"examples per chip, whole and with the hole: {each}; gradients in bf16, update sharded",
                    "sum hidden: gradients are sent during the backward pass, otherwise after it",
                ),
            ]
        )

    def facts(self) -> dict[str, object]:
        """For programs."""
        rows = [
            {**asdict(row), "loss": row.loss, "gone": row.gone, "loss_hidden": row.loss_hidden} for row in self.rows
        ]
        rates = {name: asdict(one) for name, one in self.rates.items()}
        return {"table": "mesh-holes", "rates": rates, "examples_a_chip": self.examples, "rows": rows}

    def draw(self, path: str) -> None:
        """Bars of the loss, by algorithm."""
        groups = list(dict.fromkeys((row.model, row.chips) for row in self.rows))
        draw_holes(
            path,
            [f"{model(name).title}\n{chips} chips" for name, chips in groups],
            {
                name: [
                    Loss(row.loss, row.gone, row.hole.total)
                    for group in groups
                    for row in self.rows
                    if (row.model, row.chips, row.algorithm) == (*group, name)
                ]
                for name in dict.fromkeys(row.algorithm for row in self.rows)
            },
        )


def holes(
    models: Sequence[str] = ("resnet50", "bert"),
    meshes: Sequence[tuple[str, str]] = MESHES,
    rates: Mapping[str, Rates] | None = None,
    tell: Tell = SILENT,
) -> Holes:
    """Compute the table; rates are calibrated unless given."""
    known = rates_of(models, rates, tell)
    runs = {name: published().run(name, BIGGEST) for name in models}
    examples = {name: run.batch // run.chips for name, run in runs.items()}
    rows = []
    for name in models:
        for whole, hole in meshes:
            for algorithm in sorted(ALGORITHMS.where(lambda planner: not planner.needs_intact)):
                tell(f"{model(name).title} on {hole} by {algorithm}")
                rows.append(_row(runs[name], whole, hole, algorithm, known[name]))
    return Holes(tuple(rows), known, examples)


def _row(run: Published, whole: str, hole: str, algorithm: str, rates: Rates) -> Row:
    before, after = (
        Setting(
            model=model(run.model),
            mesh=mesh,
            batch=run.batch // run.chips * len(mesh.live),
            of_peak=rates.of_peak,
            fixed=rates.fixed,
            norm_span=run.norm_span,
            algorithm=algorithm,
            shard_update=True,
        )
        for mesh in (Mesh.parse(whole), Mesh.parse(hole))
    )
    hidden = (step(replace(setting, hide=True)) for setting in (before, after))
    return Row(run.model, whole, hole, algorithm, before.chips, after.chips, step(before), step(after), *hidden)
