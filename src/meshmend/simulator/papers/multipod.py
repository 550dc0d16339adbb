"""Steps from 16 to 4096 chips: what 2-D sums, sharded updates and model parallelism each bring.

The question of arXiv 2011.03641. Below the predictions stand the published times: one point calibrates a model, the
others test it (`published.py`). Where only minutes are known, a number of steps is not made up: the table says how many
steps the minutes would be at the predicted step, and how the minutes would compare if every run took as many examples
as the one on 4096 chips.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from meshmend.base.terminal import SILENT, Tell, notes, table
from meshmend.base.units import milliseconds as ms
from meshmend.base.units import percent
from meshmend.simulator.papers.charts import draw_multipod
from meshmend.simulator.papers.published import (
    LIKE,
    MOST_EXAMPLES,
    PUBLISHED,
    Published,
    batch_on,
    first,
    rates_of,
    setting_of,
)
from meshmend.simulator.step.hardware import mesh_of
from meshmend.simulator.step.models import model
from meshmend.simulator.step.step import Setting, Step, step

MODELS = ("resnet50", "bert", "ssd", "transformer")
CHIPS = (16, 64, 256, 1024, 4096)


@dataclass(frozen=True)
class Row:
    """One model on so many chips, from the plainest step to the best."""

    model: str
    chips: int
    batch: int
    cores: int
    """Cores per replica in the last two."""
    plain: Step
    """A ring, every core updating all weights, one core per replica."""
    two_d: Step
    """The same with a 2-D sum."""
    sharded: Step
    """And the update sharded."""
    divided: Step
    """And model parallelism, with as many cores per replica as were published."""
    trees: Step
    """The best of the last two, with trees instead."""


@dataclass(frozen=True)
class Check:
    """A published time compared with the prediction."""

    point: Published
    batch: int
    predicted: Step
    calibrates: bool
    error: float | None
    """Of the step where steps are known; else of the minutes as if it took as many examples as on 4096 chips."""
    steps: float
    """Steps that the published minutes hold, at the predicted time of a step."""


@dataclass(frozen=True)
class Multipod:
    """The table."""

    rows: tuple[Row, ...]
    checks: tuple[Check, ...]
    of_peak: dict[str, float]

    def render(self) -> str:
        """As text."""
        parts = [
            "Steps on TPU-v3 from 16 to 4096 chips (times in ms; gradients in bf16, nothing hidden)",
            self._steps(),
        ]
        rates = ", ".join(
            f"{model(name).title} {percent(part)}"
            + (f" (as {model(LIKE[name]).title}: its steps are not known)" if name in LIKE else " (calibrated)")
            for name, part in self.of_peak.items()
        )
        caps = ", ".join(f"{model(name).title} {MOST_EXAMPLES[name]}" for name in self.of_peak)
        parts.append(
            notes(
                f"computed at this part of the peak: {rates}",
                "sums predicted from the plans' loads and hops, which comes out up to some 10 % below simulated ones",
                "batch: the published one on 4096 chips, or as many examples as the chips take, which is assumed to be "
                f"at most, a chip: {caps}",
                "step 1-D: a ring, every core updates all weights; 2-D: rows and columns; sharded: 2-D and the update "
                "sharded; k cores: that and model parallelism with the published cores a replica; trees: the better of "
                "these two, with the sum by trees",
            )
        )
        if self.checks:
            parts += ["", "Beside what was published (MLPerf 0.7 logs unless said)", self._published(), self._remarks()]
        return "\n".join(parts)

    def _steps(self) -> str:
        heads = (
            "model", "chips", "batch", "compute", "sum\n1-D", "sum\n2-D", "sum\ntrees", "update\nwhole",
            "update\nsharded", "step\n1-D", "step\n2-D", "step\nsharded", "k", "step\nk cores", "step\ntrees",
        )  # fmt: skip
        rows = (
            (
                model(row.model).title, f"{row.chips}", f"{row.batch:,}", ms(row.plain.compute), ms(row.plain.sum),
                ms(row.two_d.sum), ms(row.trees.sum), ms(row.two_d.update), ms(row.sharded.update),
                ms(row.plain.total), ms(row.two_d.total), ms(row.sharded.total),
                f"{row.cores}" if row.cores > 1 else "", ms(row.divided.total) if row.cores > 1 else "",
                ms(row.trees.total),
            )
            for row in self.rows
        )  # fmt: skip
        return table(heads, rows)

    def _published(self) -> str:
        heads = (
            "model", "chips", "published by", "minutes", "batch", "k", "published\nstep", "predicted\nstep", "error",
            "steps it\nwould be", "examples it\nwould be",
        )  # fmt: skip
        rows = (
            (
                model(check.point.model).title, f"{check.point.chips}", check.point.source, f"{check.point.minutes:g}",
                f"{check.batch:,}" + "*" * (check.point.batch is None), f"{check.point.cores}",
                f"≤ {ms(check.point.step)}" if check.point.step else "?",
                ms(check.predicted.total),
                _error(check),
                f"{check.steps:,.0f}", f"{check.steps * check.batch / 1e6:.1f} M",
            )
            for check in self.checks
        )  # fmt: skip
        return table(heads, rows)

    def _remarks(self) -> str:
        return notes(
            "≤: minutes over steps, with evaluation in it; the prediction has none, so it should come out below",
            "error: of the step where steps are known; else of the minutes, relative to the same model's first line, "
            "as if both runs took as many examples. Small batches need fewer: the last column is what a run would have "
            "trained on for the prediction to be exact",
            "batch with a star: not published there, assumed as above",
        )

    def facts(self) -> dict[str, object]:
        """For programs."""
        rows = [
            {**asdict(row), **{f"{name}_total": getattr(row, name).total for name in VARIANTS}} for row in self.rows
        ]
        checks = [{**asdict(check), "predicted_total": check.predicted.total} for check in self.checks]
        return {"table": "multipod", "of_peak": self.of_peak, "rows": rows, "published": checks}

    def draw(self, path: str) -> None:
        """Stacked bars of the plain and of the best step over chips, a panel per model."""
        draw_multipod(
            path,
            {
                model(name).title: [(row.chips, row.plain, best(row)) for row in self.rows if row.model == name]
                for name in dict.fromkeys(row.model for row in self.rows)
            },
        )


VARIANTS = ("plain", "two_d", "sharded", "divided", "trees")


def _error(check: Check) -> str:
    if check.calibrates:
        return "calibrated"
    return "?" if check.error is None else percent(check.error, sign=True)


def best(row: Row) -> Step:
    """The fastest step with a 2-D sum."""
    return min(row.sharded, row.divided, key=lambda step: step.total)


def multipod(
    models: Sequence[str] = MODELS,
    chips: Sequence[int] = CHIPS,
    points: Sequence[Published] = PUBLISHED,
    of_peak: Mapping[str, float] | None = None,
    tell: Tell = SILENT,
) -> Multipod:
    """Compute the table; the part of the peak is calibrated unless given."""
    rates = rates_of(models, of_peak, tell)
    rows = []
    for name in models:
        for count in chips:
            tell(f"{model(name).title} on {count} chips")
            rows.append(_row(name, count, rates[name]))
    tell("published points")
    return Multipod(tuple(rows), tuple(_checks([point for point in points if point.model in rates], rates)), rates)


def _row(name: str, chips: int, of_peak: float) -> Row:
    cores = first(name).cores
    plain = Setting(
        model=model(name), mesh=mesh_of(chips), batch=batch_on(name, chips), of_peak=of_peak, algorithm="ring"
    )
    two_d = replace(plain, algorithm="rowcol")
    sharded = replace(two_d, shard_update=True)
    divided = replace(sharded, cores=cores)
    better = min(sharded, divided, key=lambda setting: step(setting).total)
    return Row(
        name,
        chips,
        plain.batch,
        cores,
        plain=step(plain),
        two_d=step(two_d),
        sharded=step(sharded),
        divided=step(divided),
        trees=step(replace(better, algorithm="trees")),
    )


def _checks(points: Sequence[Published], of_peak: Mapping[str, float]) -> Iterator[Check]:
    anchors: dict[str, float] = {}
    for point in points:
        setting = setting_of(point, of_peak[point.model])
        predicted = step(setting)
        steps = 60 * point.minutes / predicted.total
        calibrates = point == first(point.model) and point.step is not None
        # Relative to the first line of the model: seconds that an example takes, predicted and published.
        ratio = steps * setting.batch
        error = predicted.total / point.step - 1 if point.step else None
        if point.model in anchors and not point.step:
            error = anchors[point.model] / ratio - 1
        anchors.setdefault(point.model, ratio)
        yield Check(point, setting.batch, predicted, calibrates, error, steps)
