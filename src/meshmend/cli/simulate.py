"""`meshmend simulate`: what an all-reduce, a training step, or weeks of a fleet would cost."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App, Parameter

from meshmend.base.terminal import table
from meshmend.base.units import duration_text, percent, read_bytes, read_duration, size_text
from meshmend.cli.app import app
from meshmend.cli.plan import LinkName, load_plan
from meshmend.errors import SimulateError
from meshmend.mesh.choose import AUTO
from meshmend.mesh.planners import ALGORITHMS
from meshmend.simulator.network.network import ORDERS

if TYPE_CHECKING:
    from meshmend.mesh.planners import Plan
    from meshmend.simulator import Flight, Network

Algorithms = Annotated[
    str, Parameter(help=f"{AUTO}, or one or more of {', '.join(ALGORITHMS)} to compare, such as ring,trees.")
]
OrderName = Annotated[
    str,
    Parameter(help=f"{', '.join(ORDERS)}: links keep to the plan's schedule, or serve chunks in order of arrival."),
]
simulate = App(name="simulate", help="What an all-reduce, a step, or weeks of a fleet would cost.")
app.command(simulate)


@simulate.default
def all_reduce(
    what: str,
    /,
    *,
    algorithm: Algorithms = AUTO,
    nbytes: str = "102MB",
    link: LinkName = "tpu-v3",
    bandwidth: str | None = None,
    latency: str | None = None,
    overhead: str | None = None,
    adds: str | None = None,
    chunks: int | None = None,
    order: OrderName = "schedule",
    fail: str | None = None,
    at: str | None = None,
    trace: str | None = None,
    draw: str | None = None,
    json: str | None = None,
) -> int:
    """Run one all-reduce on simulated links, chunk by chunk.

    Parameters
    ----------
    what
        A plan file that `meshmend plan --json` wrote, or a mesh such as 16x32 -4x2@6,12.
    nbytes
        The payload, such as 102MB or 64MiB.
    bandwidth
        Bytes per second each way instead, such as 50GB.
    latency
        Time per hop instead, such as 500ns.
    overhead
        The fixed cost of each message, such as 2us.
    adds
        Bytes per second that a chip can add; without it, adding takes no time.
    chunks
        Chunks of the payload, instead of those chosen by rule.
    fail
        What dies during the sum, such as 4x2@6,12 or link@3,4:3,5.
    at
        When it does, such as 300us.
    trace
        Write a Perfetto trace with a track for each link to this .json or .json.gz file.
    draw
        Draw how busy each link was over time to this PNG or SVG file.
    json
        Write the figures to this JSON file.

    """
    from meshmend.simulator import simulate as fly

    check_files(draw, trace, json)
    if (trace or draw) and "," in algorithm:
        raise SimulateError("--trace and --draw show one simulation: name a single --algorithm")
    payload, net = read_bytes(nbytes), _network(link, bandwidth, latency, overhead, adds)
    if (fail is None) != (at is None):
        raise SimulateError("--fail and --at go together: what dies, and when, such as --fail 4x2@6,12 --at 300us")
    dies = {f"-{fail.lstrip('-')}": read_duration(at)} if fail is not None and at is not None else {}
    flights = []
    for plan in _plans(what, algorithm, payload, net):
        flights.append((plan, fly(plan, payload, net, chunks=chunks, order=order, dies=dies)))  # type: ignore[arg-type]
    _print(flights, dies)
    _, flight = flights[0]
    if trace:
        flight.trace(trace)
        print(f"wrote  {trace}; open it at ui.perfetto.dev")
    if draw:
        flight.draw(draw)
        print(f"drew   {draw}")
    if json:
        write_json(json, {"nbytes": payload, "flights": [_figures(plan, flight) for plan, flight in flights]})
    return 0


def _network(
    link: str, bandwidth: str | None, latency: str | None, overhead: str | None, adds: str | None
) -> Network:  # fmt: skip
    from dataclasses import replace

    from meshmend.simulator import network_for

    net = network_for(link)
    if bandwidth is not None:
        net = replace(net, bandwidth=read_bytes(bandwidth))
    if latency is not None:
        net = replace(net, latency=read_duration(latency))
    if overhead is not None:
        net = replace(net, overhead=read_duration(overhead))
    if adds is not None:
        net = replace(net, adds=read_bytes(adds))
    return net


def _plans(what: str, algorithm: str, payload: float, net: Network) -> list[Plan]:
    from meshmend import plan as make
    from meshmend.mesh import read_mesh

    if what.endswith((".json", ".mm")):
        return [load_plan(what)]
    mesh = read_mesh(what)
    return [make(mesh, payload, name.strip(), net.link) for name in algorithm.split(",")]


def _print(flights: list[tuple[Plan, Flight]], dies: dict[str, float]) -> None:
    net, payload = flights[0][1].network, flights[0][1].nbytes
    adds = f", chips add {size_text(net.adds)}/s" if math.isfinite(net.adds) else ""
    own = f", {duration_text(net.overhead)} a message" if net.overhead else ""
    print(f"mesh   {flights[0][0].mesh}")
    print(f"links  {size_text(net.bandwidth)}/s each way, {duration_text(net.latency)} per hop{own}{adds}")
    print(f"bytes  {size_text(payload)}\n")
    heads = ("plan", "flows", "chunks", "transfers", "time", "speed", "of bound", "busiest", "mean")
    print(table(heads, [_cells(plan, flight) for plan, flight in flights]))
    for hole, when in dies.items():
        for plan, flight in flights:
            _print_death(plan, flight, hole, when)


def _cells(plan: Plan, flight: Flight) -> list[str]:
    use, whole = flight.use(), math.isfinite(flight.seconds)
    return [
        plan.algorithm, f"{len(plan)}", f"{flight.schedule.chunks}", f"{len(flight.schedule):,}",
        duration_text(flight.seconds), f"{flight.algbw:.3f} B" if whole else "–",
        percent(flight.algbw / plan.bound.value, 1) if whole else "–",
        percent(float(use.max()), 0), percent(float(use.mean()), 0),
    ]  # fmt: skip


def _print_death(plan: Plan, flight: Flight, hole: str, when: float) -> None:
    """What the survivors of a death hold: when it happens, and after all that can still arrive has arrived."""
    alive = plan.mesh.fail(hole).alive[plan.mesh.live]
    print(f"\n{plan.algorithm}: {hole.lstrip('-')} dies after {duration_text(when)}, {int(alive.sum())} chips are left")
    for name, moment in (("then", when), ("in the end", math.inf)):
        whole = (flight.parts(moment) == len(plan.mesh.live))[alive]
        print(
            f"{name:>10}: chips hold {100 * whole.mean():.1f} % of the sums; {100 * whole.all(0).mean():.1f} % of "
            f"chunks are whole on every survivor, {100 * (~whole.any(0)).mean():.1f} % on none"
        )  # fmt: skip


def _figures(plan: Plan, flight: Flight) -> dict[str, object]:
    whole, use = math.isfinite(flight.seconds), flight.use()
    return {
        "mesh": str(plan.mesh), "algorithm": plan.algorithm, "flows": len(plan), "chunks": flight.schedule.chunks,
        "transfers": len(flight.schedule), "seconds": flight.seconds if whole else None,
        "algbw": flight.algbw if whole else None, "bound": plan.bound.value,
        "busiest": float(use.max()), "mean": float(use.mean()),
    }  # fmt: skip


def check_files(draw: str | None, *others: str | None) -> None:
    """Before the work, not after it: can these files be written?"""
    if draw and Path(draw).suffix.lower() not in (".png", ".svg"):
        raise SimulateError(f"cannot draw to {draw!r}: give a path that ends in .png or .svg")
    for path in (draw, *others):
        if path and not Path(path).absolute().parent.is_dir():
            raise SimulateError(f"cannot write {path!r}: there is no such folder")


def write_json(path: str, figures: object) -> None:
    """Write figures to a file, and say so."""
    import json

    try:
        Path(path).write_text(json.dumps(figures, indent=2) + "\n")
    except OSError as error:
        raise SimulateError(f"cannot write {path!r}: {error.strerror or error}") from None
    print(f"wrote  {path}")
