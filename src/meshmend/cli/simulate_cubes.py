"""`meshmend simulate cubes`: a machine of cubes, with and without the cubes that have a dead host."""

from __future__ import annotations

from meshmend.base.units import HOUR, read_duration, read_frequency, read_share
from meshmend.cli.simulate import check_files, simulate
from meshmend.errors import SimulateError


@simulate.command
def cubes(
    mesh: str = "tpu7x-pod",
    *,
    needed: int = 130,
    weeks: float = 4,
    jobs: int = 40,
    rate: str = "0.08%/day",
    repair: str = "4h,120h",
    checkpoint_cost: str = "1min",
    detect: str = "1min",
    restart: str = "10min",
    reroute: str = "30s",
    sum_share: str = "15%",
    lanes: int = 0,
    seed: int = 0,
    draw: str | None = None,
) -> int:
    """A month of a machine built of cubes of 4x4x4 chips: leave cubes with a dead host out, or route around the host.

    Parameters
    ----------
    mesh
        The intact machine.
    needed
        Healthy cubes that the first rule plans with; the others stand by.
    weeks
        How long each job is watched.
    jobs
        How many jobs.
    rate
        How often a host fails; the default is Google's figure for TPU v4.
    repair
        Mean times until it works again, a table for each.
    checkpoint_cost
        How long writing a checkpoint stops the job; the interval is Young's.
    detect
        From a failure until it is noticed.
    restart
        From then until the job runs from its checkpoint.
    reroute
        From then until the job runs around the hole.
    sum_share
        The share of a healthy step in which chips wait for the gradient sum.
    lanes
        Lanes a chip computes in a healthy step; 0: work divides evenly over any number of chips.
    seed
        Seed of the failures.
    draw
        Write a picture to this PNG or SVG file.

    """
    import math

    from meshmend.base.terminal import Progress
    from meshmend.mesh import Mesh
    from meshmend.mesh.hole import count
    from meshmend.simulator.fleet.cubes import Machine, study
    from meshmend.simulator.fleet.cubes_text import describe
    from meshmend.simulator.fleet.policies import Costs
    from meshmend.simulator.fleet.speeds import Step

    check_files(draw, None)
    where = Mesh.parse(mesh)
    failures = read_frequency(rate, "the failure rate of a host", SimulateError)

    def hours(text: str, what: str) -> float:
        return read_duration(text, what, SimulateError) / HOUR

    if len(where.dims) != 3:
        raise SimulateError(f"{where} is not built of cubes: give a mesh of three dimensions, such as tpu7x-pod")
    cost = hours(checkpoint_cost, "the cost of a checkpoint")
    often = failures * count(where, "host")
    costs = Costs(
        interval=math.sqrt(2 * cost / often) if often and cost else math.inf,
        checkpoint=cost,
        detect=hours(detect, "the time to detect a failure"),
        restart=hours(restart, "the time to restart"),
        reroute=hours(reroute, "the time to reroute"),
    )
    step = Step(sum_share=read_share(sum_share, "--sum-share", SimulateError), lanes=lanes)
    done = []
    with Progress() as progress:
        for text in repair.split(","):
            machine = Machine(
                mesh=where, needed=needed, weeks=weeks, jobs=jobs, rate=failures, costs=costs, step=step, seed=seed,
                repair=hours(text.strip(), "a repair time"),
            )  # fmt: skip
            done.append(study(machine, progress))
    print(describe(done))
    if draw:
        from meshmend.simulator.fleet.cubes_chart import draw_cubes

        draw_cubes(done, draw)
        print(f"drew   {draw}")
    return 0
