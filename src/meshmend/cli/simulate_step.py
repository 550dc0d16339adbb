"""`meshmend simulate step`: one training step, part by part, or the tables of the three papers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from meshmend.base.units import milliseconds as ms
from meshmend.base.units import read_bytes
from meshmend.cli.app import one_of
from meshmend.cli.plan import MeshText
from meshmend.cli.simulate import check_files, simulate, write_json
from meshmend.errors import SimulateError
from meshmend.mesh.planners import ALGORITHMS
from meshmend.simulator.papers import TABLES
from meshmend.simulator.step.hardware import MACHINES
from meshmend.simulator.step.models import MODELS, WIRES

if TYPE_CHECKING:
    from meshmend.simulator.step.step import Setting, Step

    TableName = str
else:
    TableName = one_of(TABLES)

EXAMPLES = 32
"""Examples per chip where no batch is given."""


@simulate.command
def step(
    model: Annotated[str | None, Parameter(help=f"One of {', '.join(MODELS)}.")] = None,
    *,
    chips: int | None = None,
    mesh: Annotated[MeshText | None, Parameter(help="A mesh with its holes, instead of --chips.")] = None,
    batch: int | None = None,
    of_peak: float | None = None,
    machine: Annotated[str, Parameter(help=f"What computes: {', '.join(MACHINES)}.")] = "tpu-v3",
    algorithm: Annotated[
        str | None,
        Parameter(
            help=f"How gradients are summed: {', '.join(ALGORITHMS)}; by default trees, or ring through a switch."
        ),
    ] = None,
    wire: Annotated[str, Parameter(help=f"How gradients travel: {', '.join(WIRES)}.")] = "bf16",
    payload: str | None = None,
    shard_update: bool = False,
    model_parallel: int = 1,
    hide: bool = False,
    table: TableName | None = None,
    json: str | None = None,
    draw: str | None = None,
) -> int:
    """How long a training step takes, and what takes it; or a whole table of steps.

    Parameters
    ----------
    chips
        Number of chips, as square as possible; 512 by default.
    batch
        Examples per step on all chips together; 32 per chip by default.
    of_peak
        The share of the peak rate that computing reaches; 0.3 by default.
    payload
        Bytes to sum, such as 64MB, instead of the model's gradients.
    shard_update
        Every core updates only its share of the weights.
    model_parallel
        Cores per replica.
    hide
        Sum during the backward pass.
    table
        Instead of one step: mesh-holes (arXiv 2011.03605), multipod (2011.03641) or mpi-faults (1709.03316).
    json
        Write all figures to this JSON file.
    draw
        Write a chart to this PNG or SVG file.

    """
    check_files(draw, json)
    if table:
        if model:
            raise SimulateError(f"--table {table} has its own models: leave {model!r} out")
        return _table(table, json, draw)
    if not model:
        raise SimulateError(f"which model? Give one of {', '.join(MODELS)}, or --table")
    from meshmend.mesh import Mesh
    from meshmend.simulator.papers.charts import draw_step
    from meshmend.simulator.step.hardware import machine as machine_of
    from meshmend.simulator.step.hardware import mesh_of
    from meshmend.simulator.step.models import model as model_of
    from meshmend.simulator.step.step import Setting
    from meshmend.simulator.step.step import step as simulate_step

    if mesh and chips is not None:
        raise SimulateError(f"--chips {chips} and --mesh {mesh!r} say the same thing twice: give one of them")
    where = Mesh.parse(mesh) if mesh else mesh_of(512 if chips is None else chips)
    kind = machine_of(machine)
    setting = Setting(
        model=model_of(model),
        mesh=where,
        batch=EXAMPLES * len(where.live) if batch is None else batch,
        of_peak=0.3 if of_peak is None else of_peak,
        machine=kind,
        algorithm=algorithm or ("trees" if kind.meshed else "ring"),
        wire=wire,
        simulated=True,
        payload=None if payload is None else read_bytes(payload),
        shard_update=shard_update,
        cores=model_parallel,
        hide=hide,
    )
    done = simulate_step(setting)
    print(_text(setting, done, stated=of_peak is not None))
    if draw:
        draw_step(draw, f"{setting.model.title} on {where}, a batch of {setting.batch:,}", done)
        print(f"drew   {draw}")
    if json:
        write_json(json, _facts(setting, done))
    return 0


def _table(name: str, json: str | None, draw: str | None) -> int:
    from meshmend.base.terminal import Progress

    with Progress() as progress:
        made = TABLES[name](tell=progress)
    print(made.render())
    if draw:
        made.draw(draw)
        print(f"drew   {draw}")
    if json:
        write_json(json, made.facts())
    return 0


def _text(setting: Setting, done: Step, *, stated: bool) -> str:
    model, machine = setting.model, setting.machine
    rate = f"{100 * setting.of_peak:.3g} % of the peak{'' if stated else ' (assumed: set --of-peak)'}"
    flops = f"{model.flops / 1e9:,.0f}" if model.flops >= 1e11 else f"{model.flops / 1e9:.3g}"
    shared = f"{setting.cores} cores per replica, " if setting.cores > 1 else ""
    update = f"{model.optimizer}, {'sharded' if setting.shard_update else 'whole on every core'}"
    nbytes = setting.payload or model.gradient_bytes(setting.wire)
    inside = [("inside", done.inside, "communication within a replica")] if done.inside else []
    parts = [
        ("compute", done.compute, f"{setting.examples:,} examples per replica at {rate}"),
        *inside,
        ("sum", done.sum, f"{nbytes / 1e6:,.1f} MB by {setting.algorithm} on {setting.mesh}"),
        *([("hidden", -done.hidden, "of it, in the backward pass")] if setting.hide else []),
        ("update", done.update, update),
        ("input", done.input, "what is not hidden"),
        ("step", done.total, f"{done.throughput:,.0f} examples/s"),
    ]  # fmt: skip
    lines = [
        f"model    {model.title}: {model.params:,} parameters, {flops} GFLOP per example; {model.about}",
        f"machine  {machine.name}: {machine.about}",
        f"batch    {setting.batch:,} on {setting.chips} chips, {shared}{setting.replicas} replicas",
        *(f"{name:<8} {'-' * (time < 0)}{ms(abs(time))} ms, {about}" for name, time, about in parts),
    ]
    return "\n".join(lines)


def _facts(setting: Setting, done: Step) -> dict[str, object]:
    from dataclasses import asdict

    return {
        "model": setting.model.name,
        "params": setting.model.params,
        "flops_an_example": setting.model.flops,
        "layers": [{"name": one.name, "params": one.params, "flops": one.flops} for one in setting.model.layers],
        "payload": setting.payload or setting.model.gradient_bytes(setting.wire),
        "mesh": str(setting.mesh),
        "machine": asdict(setting.machine),
        "of_peak": setting.of_peak,
        "algorithm": setting.algorithm,
        "wire": setting.wire,
        "shard_update": setting.shard_update,
        "cores_a_replica": setting.cores,
        "replicas": setting.replicas,
        "seconds": {**asdict(done), "total": done.total},
    }
