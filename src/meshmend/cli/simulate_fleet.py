"""`meshmend simulate fleet`: weeks of training under failures, policy by policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from meshmend.base.units import HOUR, read_duration, read_frequency, read_share
from meshmend.cli.app import one_of
from meshmend.cli.simulate import check_files, simulate, write_json
from meshmend.errors import SimulateError
from meshmend.mesh.hole import KINDS
from meshmend.simulator.fleet.fleet import AROUND_HOLES
from meshmend.simulator.fleet.history import REPAIR_TIMES
from meshmend.simulator.fleet.policies import POLICIES

if TYPE_CHECKING:
    Algorithm = str
    Times = str
else:
    Algorithm, Times = one_of(AROUND_HOLES), one_of(REPAIR_TIMES)
MULTIPOD = "tpu-v3-multipod"


@simulate.command
def fleet(
    mesh: str | None = None,
    *,
    weeks: float = 4,
    jobs: int | None = None,
    policies: Annotated[
        str, Parameter(help=f"Policies to compare: {', '.join(POLICIES)}.")
    ] = "wait,restart,spare,route",
    rate: str = "host=0.08%/day,link=0.005%/day",
    repair: str = "4h",
    repair_times: Times = "exponential",
    checkpoint: str = "auto",
    checkpoint_cost: str = "1min",
    detect: str = "1min",
    restart: str = "10min",
    reroute: str = "30s",
    spares: int | None = None,
    sum_share: str = "15%",
    lanes: int = 16,
    algorithm: Algorithm = "trees",
    plans: int = 24,
    sweep: bool = False,
    worth: str = "1%",
    seed: int = 0,
    draw: str | None = None,
    json: str | None = None,
) -> int:
    """Weeks of training under failures: how much of all chip time each policy makes useful.

    Parameters
    ----------
    mesh
        The intact mesh of one job (tpu-v3-multipod: 128x32 wrap=y).
    weeks
        How long each job is watched.
    jobs
        How many jobs (250, or 40 at each size of a sweep).
    rate
        How often one chip, board, host or link fails; these are Google's figures for TPU v4.
    repair
        Mean time until it works again, such as 4h or host=4h,link=2h.
    repair_times
        Whether repairs take exponential times or always the mean.
    checkpoint
        Working time between checkpoints; auto: Young's sqrt(2 x cost / failure rate).
    checkpoint_cost
        How long writing one stops the job.
    detect
        From a failure until it is noticed.
    restart
        From then until the job runs from its checkpoint.
    reroute
        From then until the job runs around the hole, including the repeated step; the same after a repair.
    spares
        Spare hosts of the policy spare (one for every hundred).
    sum_share
        The share of a healthy step in which chips wait for the gradient sum.
    lanes
        Lanes a chip computes in a healthy step; 0: work divides evenly over any number of chips.
    algorithm
        The plan around the hole.
    plans
        How many of the most frequent holes are also planned in full.
    sweep
        Compare meshes of 512 to 65,536 chips, and say from which size on route pays.
    worth
        The share of all chip time that it must gain to pay.
    seed
        Seed of the failures.
    draw
        Write a picture to this PNG or SVG file: one job over time, or the sweep.
    json
        Write all figures to this JSON file.

    """
    from meshmend.base.terminal import Progress
    from meshmend.mesh import Mesh
    from meshmend.simulator.fleet import Fleet, Step, study, text
    from meshmend.simulator.fleet import sweep as over_sizes

    if sweep and mesh:
        raise SimulateError(f"a sweep has its own meshes of 512 to 65,536 chips: leave {mesh!r} out, or --sweep")
    check_files(draw, json)
    made = Fleet(
        mesh=Mesh.parse(mesh or MULTIPOD),
        weeks=weeks,
        jobs=(40 if sweep else 250) if jobs is None else jobs,
        policies=tuple(name.strip() for name in policies.split(",")),
        rate=read_rates(rate),
        repair=read_repairs(repair),
        repair_times=repair_times,
        checkpoint=None if checkpoint == "auto" else _hours(checkpoint, "a checkpoint interval"),
        checkpoint_cost=_hours(checkpoint_cost, "the cost of a checkpoint"),
        detect=_hours(detect, "the time to detect a failure"),
        restart=_hours(restart, "the time to restart"),
        reroute=_hours(reroute, "the time to reroute"),
        spares=spares,
        step=Step(sum_share=read_share(sum_share, "--sum-share", SimulateError), lanes=lanes),
        algorithm=algorithm,
        plans=plans,
        seed=seed,
    )
    with Progress() as progress:
        if sweep:
            swept = over_sizes(made, worth=read_share(worth, "--worth", SimulateError), tell=progress)
            said, figures = text.describe_sweep(swept), text.sweep_data(swept)
        else:
            done = study(made, progress)
            said, figures = text.describe(done), text.data(done)
    print(said)
    if draw:
        from meshmend.simulator.fleet.chart import draw_sweep, draw_time

        draw_sweep(swept, draw) if sweep else draw_time(done, draw)
        print(f"drew   {draw}")
    if json:
        write_json(json, figures)
    return 0


def read_rates(text: str) -> dict[str, float]:
    """`host=0.08%/day,link=0.005%/day`: failures per hour of one such thing, by kind."""
    return {
        kind: read_frequency(value, f"the failure rate of a {kind}", SimulateError)
        for kind, value in _by_kind(text, "--rate", "host=0.08%/day")
    }


def read_repairs(text: str) -> dict[str, float]:
    """`4h` for everything, or `host=4h,link=2h`: the mean hours until such a thing works again, by kind."""
    if "=" not in text:
        return dict.fromkeys(KINDS, _hours(text, "a repair time"))
    return {
        kind: _hours(value, f"the repair time of a {kind}") for kind, value in _by_kind(text, "--repair", "host=4h")
    }


def _hours(text: str, what: str) -> float:
    return read_duration(text, what, SimulateError) / HOUR


def _by_kind(text: str, option: str, example: str) -> list[tuple[str, str]]:
    out = []
    for part in text.split(","):
        kind, equals, value = (word.strip().lower() for word in part.partition("="))
        if not equals or kind not in KINDS:
            raise SimulateError(
                f"cannot read {part.strip()!r} in {option}: expected {', '.join(KINDS[:-1])} or {KINDS[-1]}, "
                f"then = and a value, such as {example}"
            )
        out.append((kind, value))
    return out
