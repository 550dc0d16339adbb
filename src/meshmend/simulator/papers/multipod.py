"""Steps from 16 to 4096 chips: what 2-D sums, sharded updates and model parallelism each bring.

The question of arXiv 2011.03641, on the batches and cores per replica of Google's MLPerf logs (`published.py`). Below
the steps stand the published ones. Runs that calibrate are marked; every other run could prove the prediction wrong,
and its error is printed, whatever it is (`calibrated.py` has the rules).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from meshmend.base.terminal import SILENT, Tell, notes, table
from meshmend.base.units import milliseconds as ms
from meshmend.base.units import percent
from meshmend.simulator.papers.calibrated import BEGIN, STARTS, by_rate_alone, line_of, rates_of, start, worst_errors
from meshmend.simulator.papers.charts import Panel, draw_multipod
from meshmend.simulator.papers.published import Published, published
from meshmend.simulator.step.hardware import MACHINES
from meshmend.simulator.step.models import model
from meshmend.simulator.step.run import Rates
from meshmend.simulator.step.step import Step, step

MODELS = ("resnet50", "bert", "ssd", "transformer", "maskrcnn")


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
    """The same as the one before, with trees instead."""


@dataclass(frozen=True)
class Check:
    """A published run compared with the prediction."""

    run: Published
    predicted: float
    """Seconds of a step, with its share of evaluation."""
    role: str
    """What the run is used for; empty if for nothing but the comparison."""
    run_s: float | None
    """Predicted seconds of the whole run."""

    @property
    def error(self) -> float:
        """Of the step."""
        return self.predicted / self.run.step - 1

    @property
    def tests(self) -> bool:
        """Whether the error could be anything: nothing of this model on as many chips was used."""
        return not self.role


@dataclass(frozen=True)
class Multipod:
    """The table."""

    rows: tuple[Row, ...]
    checks: tuple[Check, ...]
    rates: dict[str, Rates]

    def render(self) -> str:
        """As text."""
        parts = [
            "Steps on TPU-v3 from 16 to 4096 chips (times in ms; gradients in bf16, nothing hidden)",
            self._steps(),
            notes(
                "compute at the calibrated part of the peak, and a fixed time per step: "
                + ", ".join(
                    f"{model(name).title} {percent(rates.of_peak)} and {ms(rates.fixed)} ms"
                    for name, rates in self.rates.items()
                ),
                "sums predicted from the plans' loads and hops, up to about 10 % below simulated ones",
                "chips, batch and cores per replica (k) are those of the logs; the same batch in every column",
                "step 1-D: a ring, every core updates all weights; 2-D: rows and columns; sharded: 2-D and the update "
                "sharded; k cores: that and model parallelism; trees: the same, summed by trees",
            ),
        ]
        if self.checks:
            parts += ["", "Compared with published figures", self._published(), self._remarks()]
        return "\n".join(parts)

    def _steps(self) -> str:
        heads = (
            "model", "chips", "batch", "compute\n+ fixed", "sum\n1-D", "sum\n2-D", "sum\ntrees", "update\nwhole",
            "update\nsharded", "step\n1-D", "step\n2-D", "step\nsharded", "k", "step\nk cores", "step\ntrees",
        )  # fmt: skip
        rows = (
            (
                model(row.model).title, f"{row.chips}", f"{row.batch:,}", ms(row.plain.compute + row.plain.fixed),
                ms(row.plain.sum), ms(row.two_d.sum), ms(row.trees.sum), ms(row.two_d.update), ms(row.sharded.update),
                ms(row.plain.total), ms(row.two_d.total), ms(row.sharded.total),
                f"{row.cores}" if row.cores > 1 else "", ms(row.divided.total) if row.cores > 1 else "",
                ms(row.trees.total),
            )
            for row in self.rows
        )  # fmt: skip
        return table(heads, rows)

    def _published(self) -> str:
        heads = (
            "model", "chips", "MLPerf", "logs", "batch", "k", "published\nstep, ms", "predicted\nstep, ms", "error",
            "published\nrun, s", "predicted\nrun, s", "error",
        )  # fmt: skip
        rows = (
            (
                model(check.run.model).title, f"{check.run.chips}", check.run.software, f"{check.run.logs}",
                f"{check.run.batch:,}", f"{check.run.cores}", ms(check.run.step), ms(check.predicted),
                check.role or percent(check.error, sign=True), f"{check.run.run_s:,.4g}",
                f"{check.run_s:,.4g}" if check.run_s else "",
                _run_error(check),
            )
            for check in self.checks
        )  # fmt: skip
        return table(heads, rows)

    def _remarks(self) -> str:
        begun = start()
        two = [name for name in self.rates if not any(c.tests and c.run.model == name for c in self.checks)]
        alone = (
            f"{model(name).title} was published at two sizes, so no error is left to print. With its part of the peak "
            "alone and no fixed time, "
            + " and ".join(
                f"calibrated on {known.chips} chips, its step on {asked.chips} is off by {percent(error, sign=True)}"
                for known, asked, error in by_rate_alone(name)
            )
            for name in two
        )
        return notes(
            f"source: {published().source}",
            "calibrates: this run and the other marked one of its model give the fixed time and the part of the peak; "
            "same size: as many chips as one that calibrates, so that the error would compare two published numbers; "
            f"begin: the one run that gives the {1e6 * MACHINES['tpu-v3'].begin:.0f} µs in which a collective inside "
            "a step begins, for all models",
            *(
                f"{model(name).title} calibrated on any two of its sizes with one core per replica: the worst error of "
                f"the others is from {percent(found[0])} to {percent(found[-1])}, in the middle "
                f"{percent(found[len(found) // 2])}"
                for name in self.rates
                if len(found := worst_errors(name)) > 1
            ),
            *alone,
            f"run: steps of the log times the predicted step, and a start of {begun.once:.1f} s + {begun.shared:,.0f} "
            f"s / chips for every model, from the two runs of {model(STARTS).title} that calibrate; empty where the "
            "log does not say how many steps were done when the clock stopped",
        )

    def facts(self) -> dict[str, object]:
        """For programs."""
        rows = [
            {**asdict(row), **{f"{name}_total": getattr(row, name).total for name in VARIANTS}} for row in self.rows
        ]
        checks = [{**asdict(check), "error": check.error if check.tests else None} for check in self.checks]
        rates = {name: asdict(one) for name, one in self.rates.items()}
        return {
            "table": "multipod", "source": published().source, "rates": rates, "rows": rows, "published": checks,
        }  # fmt: skip

    def draw(self, path: str) -> None:
        """Published steps over chips beside the predicted ones, a panel per model."""
        panels = {}
        for name in dict.fromkeys(row.model for row in self.rows):
            checks = [check for check in self.checks if check.run.model == name]
            panels[model(name).title] = Panel(
                plain=[(row.chips, row.plain.total) for row in self.rows if row.model == name],
                predicted=sorted({(check.run.chips, check.predicted) for check in checks}),
                calibrating=[(check.run.chips, check.run.step) for check in checks if not check.tests],
                tested=[(check.run.chips, check.run.step) for check in checks if check.tests],
            )
        draw_multipod(path, panels)


def _run_error(check: Check) -> str:
    if check.run in published().calibrating(STARTS):
        return "calibrates"
    return percent(check.run_s / check.run.run_s - 1, sign=True) if check.run_s else ""


VARIANTS = ("plain", "two_d", "sharded", "divided", "trees")


def multipod(
    models: Sequence[str] = MODELS,
    chips: Sequence[int] | None = None,
    rates: Mapping[str, Rates] | None = None,
    tell: Tell = SILENT,
) -> Multipod:
    """Compute the table, for the published sizes or some of them; rates are calibrated unless given."""
    known = rates_of(models, rates, tell)
    rows: list[Row] = []
    checks: list[Check] = []
    for name in models:
        runs = [run for run in published().of(name) if chips is None or run.chips in chips]
        for run in {run.chips: run for run in reversed(runs)}.values():
            tell(f"{model(name).title} on {run.chips} chips")
            rows.append(_row(run, known[name]))
        checks += _checks(runs, known[name])
    order = {name: index for index, name in enumerate(models)}
    return Multipod(tuple(sorted(rows, key=lambda row: (order[row.model], row.chips))), tuple(checks), known)


def _row(run: Published, rates: Rates) -> Row:
    divided = replace(run.setting(), of_peak=rates.of_peak, fixed=rates.fixed)
    sharded = replace(divided, cores=1)
    two_d = replace(sharded, shard_update=False)
    return Row(
        run.model,
        run.chips,
        run.batch,
        run.cores,
        plain=step(replace(two_d, algorithm="ring")),
        two_d=step(two_d),
        sharded=step(sharded),
        divided=step(divided),
        trees=step(replace(divided, algorithm="trees")),
    )


def _checks(runs: Sequence[Published], rates: Rates) -> Iterator[Check]:
    for run in runs:
        predicted = line_of(run).at(rates)
        whole = start().on(run.chips) + run.steps * predicted if run.steps else None
        yield Check(run, predicted, _role(run), whole)


def _role(run: Published) -> str:
    calibrating = published().calibrating(run.model)
    if run in calibrating:
        return "calibrates"
    if (run.model, run.name) == BEGIN:
        return "begin"
    return "same size" if run.chips in {one.chips for one in calibrating} else ""
