"""Verbs of the mesh half: plan and verify."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from meshmend.base.terminal import Progress
from meshmend.base.units import duration_text, plural, read_bytes
from meshmend.cli.app import app, one_of
from meshmend.errors import PlanError
from meshmend.mesh.choose import AUTO
from meshmend.mesh.collectives import ALL_REDUCE, COLLECTIVES
from meshmend.mesh.planners import ALGORITHMS, LINKS

if TYPE_CHECKING:
    from meshmend.mesh import Fabric
    from meshmend.mesh.planners import Plan

    Algorithm = str
    CollectiveName = str
else:
    Algorithm = one_of((AUTO, *ALGORITHMS))
    CollectiveName = one_of(tuple(COLLECTIVES))

MeshText = Annotated[
    str,
    Parameter(
        help="ROWSxCOLS[xLAYERS], a preset or links such as 0-1-2-0, then wrap=…, -ROWSxCOLS@ROW,COL, -chip@…, "
        "-link@…, -host@…, ~SPEED@…"
    ),
]
PAYLOAD = "102MB"
LINK = "tpu-v3"
LinkName = Annotated[str, Parameter(help=f"Kind of link, for predicted times: {', '.join(LINKS)}.")]


@app.command
def plan(
    mesh: MeshText,
    *,
    algorithm: Algorithm = AUTO,
    collective: CollectiveName = ALL_REDUCE,
    groups: str | None = None,
    root: str | None = None,
    nbytes: str = PAYLOAD,
    link: LinkName = LINK,
    random: str | None = None,
    seed: int = 0,
    largest: bool = False,
    flow: int = 0,
    flows: int | None = None,
    spread_roots: Annotated[bool, Parameter(negative=())] = False,
    staged: Annotated[bool, Parameter(negative=())] = False,
    draw: str | None = None,
    json: str | None = None,
    export: str | None = None,
) -> int:
    """Plan the all-reduce around a hole, prove it, and show it.

    Parameters
    ----------
    algorithm
        Which scheme; auto picks the fastest predicted for this payload.
    collective
        What to plan.
    groups
        Sum in groups, all at once: each of the chips at the same position of every tile. Rows x columns of a tile,
        such as 4x1.
    root
        The chip that broadcasts, such as 3,4; by default one in the middle.
    nbytes
        The payload, such as 102MB or 64MiB.
    random
        Kill more at random, such as chips=5% or hosts=2,links=3.
    seed
        Seed of --random.
    largest
        If the live chips are disconnected, use the largest component.
    flow
        Which flow --draw shows as arrows.
    flows
        Plan about this many trees, instead of the best packing: for formats and runtimes with limits.
    spread_roots
        Give the chunks of each tree different roots, so that every chip holds its share of a sharded update.
    staged
        Also allow a plan in stages, with many roots: on tori up to twice as fast for payloads of up to some megabytes.
    draw
        Write a picture to this SVG file.
    json
        Write the plan to this file: as JSON, or in the compact binary form if its name ends in .mm.
    export
        Write it for another runtime: an MSCCL++ execution plan (.json), an MSCCL algorithm (.xml) or Chakra
        traces (.et, a file per rank).

    """
    from meshmend import verify
    from meshmend.mesh import read_mesh
    from meshmend.mesh.choose import plan as make
    from meshmend.mesh.exports import export as write
    from meshmend.mesh.planners import spread_roots as with_roots_spread

    where = read_mesh(mesh)
    if random:
        where = where.fail_random(seed, **_counts(random))
    if largest:
        where = where.largest()
    if collective != ALL_REDUCE or groups or root:
        given = {
            "--export": export, "--flows": flows is not None, "--spread-roots": spread_roots,
            "--staged": staged, "--nbytes": nbytes != PAYLOAD, "--link": link != LINK,
        }  # fmt: skip
        if any(given.values()):
            named = [option for option, value in given.items() if value]
            does, it = ("applies", "it") if len(named) == 1 else ("apply", "them")
            raise PlanError(
                f"{' and '.join(named)} {does} only to all-reduces over all chips; remove {it}, or remove "
                "--collective, --groups and --root"
            )
        return _plan_collective(where, collective, groups, root, algorithm, draw, flow, json)
    if staged:
        given = {
            "--algorithm": algorithm != AUTO, "--flows": flows is not None, "--spread-roots": spread_roots,
            "--draw": draw, "--export": export,
        }  # fmt: skip
        if any(given.values()):
            named = [option for option, value in given.items() if value]
            raise PlanError(
                f"{' and '.join(named)} cannot be combined with --staged: plans in stages are not made of trees"
            )
        return _plan_staged(where, read_bytes(nbytes), link, json)
    with Progress() as progress:
        progress(f"planning for {len(where.live):,} chips")
        if flows is None:
            made = make(where, read_bytes(nbytes), algorithm, link)
        else:
            where.require_connected()
            made = ALGORITHMS["trees"](where, flows=flows).because(f"{plural(flows, 'tree')} asked for")
        if spread_roots:
            made = with_roots_spread(made)
        progress(f"proving {plural(len(made), 'flow')}")
        verify(made)
    if draw:
        made.draw(draw, flow=flow)
    if json:
        made.save(json)
    exported = write(made, export, read_bytes(nbytes)) if export else ""
    print(made)
    _print_floor(where, read_bytes(nbytes), link)
    print("proof  every flow is a pair of spanning trees of the live chips over live links, and the shares add up to 1")
    if draw:
        print(f"drew   {draw}")
    if json:
        print(f"wrote  {json}")
    if export:
        print(f"wrote  {export} for {exported}, a rank per live chip in order of rows")
    return 0


def _print_floor(where: Fabric, nbytes: float, link: str) -> None:
    """What no plan can beat, and why."""
    from meshmend.mesh.planners.floor import floor

    least = floor(where, nbytes, link)
    print(f"floor  no plan takes less than {duration_text(least.seconds)}: {least.reason}")


def _plan_staged(where: Fabric, nbytes: float, link: str, json: str | None) -> int:
    """An all-reduce that may be in stages: plan, prove, show."""
    from meshmend import verify
    from meshmend.mesh.choose import plan as make
    from meshmend.mesh.files import save

    with Progress() as progress:
        progress(f"planning for {len(where.live):,} chips")
        made = make(where, nbytes, link=link, staged=True)
        progress(f"proving {plural(len(made), 'flow')}")
        verify(made)
    if json:
        save(made, json)
    print(made)
    _print_floor(where, nbytes, link)
    print("proof  every chip gets every chip's part exactly once over live links, and the shares add up to 1")
    if json:
        print(f"wrote  {json}")
    return 0


def _plan_collective(
    mesh: Fabric,
    collective: str,
    groups: str | None,
    root: str | None,
    algorithm: str,
    draw: str | None,
    flow: int,
    json: str | None,
) -> int:
    """Another collective, or groups: plan, prove, show."""
    from meshmend import verify
    from meshmend.mesh.choose import plan as make
    from meshmend.mesh.collectives.groups import read_tile

    if algorithm != AUTO:
        raise PlanError(
            f"--algorithm {algorithm} supports only all-reduces over all chips; omit it for other collectives"
        )
    if groups:
        if collective != ALL_REDUCE:
            raise PlanError(f"{collective} is planned for all live chips: leave out --groups or --collective")
        made = make(mesh, groups=read_tile(groups))
    else:
        made = make(mesh, collective=collective, root=_read_chip(root) if root else None)
    verify(made)
    if draw:
        made.draw(draw, flow=flow)
    if json:
        made.save(json)
    print(made)
    relays = " a chip of another group forwards and never adds,\n      " if groups else ""
    print(
        f"proof  every flow joins all that take part over live links,{relays} and the shares of each piece add up to "
        "the whole piece"
    )
    if draw:
        print(f"drew   {draw}")
    if json:
        print(f"wrote  {json}")
    return 0


def _read_chip(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(place) for place in text.split(","))
    except ValueError:
        raise PlanError(
            f"cannot read the chip {text!r} in --root: give row,col or row,col,layer, such as 3,4, or its number"
        ) from None


@app.command
def verify(file: str, *, chunks: int | None = None) -> int:
    """Prove that a plan (with its schedule) or a schedule is correct.

    Parameters
    ----------
    file
        What `meshmend plan --json` or `mm.save` wrote.
    chunks
        Chunks of the schedule (2,048 unless there are more flows).

    """
    from meshmend import verify as prove
    from meshmend.mesh import Fabric
    from meshmend.mesh.collectives import CollectivePlan, CollectiveSchedule
    from meshmend.mesh.files import load
    from meshmend.mesh.schedule import Schedule
    from meshmend.mesh.staged import StagedPlan, StagedSchedule

    made = load(file)
    if isinstance(made, Fabric):
        raise PlanError(f"{file!r} holds the mesh {made}, not a plan: make one with meshmend plan MESH --json F")
    if isinstance(made, Schedule | CollectiveSchedule | StagedSchedule):
        if chunks is not None:
            raise PlanError(f"{file!r} holds a schedule, which has its chunks already: leave out --chunks")
        schedule: Schedule | CollectiveSchedule | StagedSchedule = made
    else:
        prove(made)
        whose = "the bound in the file" if isinstance(made, CollectivePlan) else "the bound"
        of_bound = f"{made.algbw:.3f} B ({100 * made.efficiency:.1f} % of {whose})"
        what = f", {made.algorithm}" if isinstance(made, CollectivePlan | StagedPlan) else ""
        print(f"plan      correct: {plural(len(made), 'flow')} on {made.mesh}{what}, {of_bound}")
    with Progress() as progress:
        if not isinstance(made, Schedule | CollectiveSchedule | StagedSchedule):
            progress(f"scheduling {plural(len(made), 'flow')}")
            schedule = made.schedule(chunks)
        progress(f"proving {len(schedule):,} transfers")
        prove(schedule)
    pieces = schedule.table.chunks if isinstance(schedule, CollectiveSchedule) else schedule.chunks
    print(
        f"schedule  correct: {len(schedule)} transfers of {pieces} chunks in {schedule.slots} slots, "
        f"{schedule.algbw:.3f} B with filling and draining"
    )
    return 0


def load_plan(file: str) -> Plan:
    """A plan that `meshmend plan --json` wrote."""
    from meshmend.mesh import Fabric
    from meshmend.mesh.files import load
    from meshmend.mesh.planners import Plan

    made = load(file)
    if not isinstance(made, Plan):
        what = f"the mesh {made}" if isinstance(made, Fabric) else f"a {type(made).__name__}"
        raise PlanError(f"{file!r} holds {what}, not a plan of trees: make one with meshmend plan MESH --json F")
    return made


def _counts(text: str) -> dict[str, float]:
    """chips=5%,hosts=2 …"""
    counts: dict[str, float] = {}
    for part in text.split(","):
        match = re.fullmatch(r"(\w+)=(?:(\d+)|([0-9.]+)(%?))", part.strip())
        try:
            if not match:
                raise ValueError
            counts[match[1]] = int(match[2]) if match[2] else float(match[3]) / (100 if match[4] else 1)
        except ValueError:
            raise PlanError(
                f"cannot read {part!r} in --random: expected chips, links, boards or hosts = a count or a rate, "
                "such as chips=5% or hosts=2"
            ) from None
    return counts
