"""The network: closed forms, a plain twin, conservation, deaths on the way."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshmend as mm
from meshmend.errors import SimulateError
from meshmend.mesh.planners import Plan
from meshmend.mesh.schedule import Schedule, schedule
from meshmend.simulator import Network, network_for
from meshmend.simulator.network.network import Order
from tests.simulator import twin
from tests.strategies import meshes

N, E, S, W = range(4)
ORDERS: list[Order] = ["schedule", "first-come"]


def flows(mesh: str, *trees: tuple[float, int, list[int]]) -> Plan:
    """A plan by hand: (share, root, ways up); results come back the same way."""
    up = np.array([ways for *_, ways in trees], np.int8)
    made = Plan(mm.Mesh.parse(mesh), "by hand", np.array([s for s, *_ in trees]), np.array([r for _, r, _ in trees], np.int32), up, up)  # noqa: E501  # fmt: skip
    mm.verify(made)
    return made


nets = st.builds(
    Network,
    bandwidth=st.sampled_from([1e9, 80e9]),
    latency=st.sampled_from([0.0, 1e-6, 3.3e-5]),
    overhead=st.sampled_from([0.0, 2e-6]),
    adds=st.sampled_from([math.inf, 2e9, 300e9]),
)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("chunks", [1, 7, 64])
@pytest.mark.parametrize("chips", [2, 3, 9])
@given(net=nets)
@settings(max_examples=10, deadline=None)
def test_one_chain(order: Order, chunks: int, chips: int, net: Network) -> None:
    """The first chunk goes to the end and back, the others follow at the pace of the slowest station."""
    plan = flows(f"1x{chips}", (1.0, chips - 1, [E] * (chips - 1) + [-1]))
    flight = mm.simulate(plan, 1e6, net, chunks=chunks, order=order)
    size = 1e6 / chunks
    on_link, adding = net.overhead + size / net.bandwidth, size / net.adds
    way = 2 * (chips - 1) * (on_link + net.latency) + (chips - 1) * adding
    assert flight.seconds == pytest.approx(way + (chunks - 1) * max(on_link, adding), rel=1e-12)


@pytest.mark.parametrize("order", ORDERS)
@given(net=nets.filter(lambda net: net.adds == math.inf), chunks=st.integers(1, 50), depth=st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_one_tree(order: Order, net: Network, chunks: int, depth: int) -> None:
    """A star of four arms: they do not get into each other's way, so only the depth counts."""
    side = 2 * depth + 1
    mesh = mm.Mesh(side, side)
    keep = {(depth, c) for c in range(side)} | {(r, depth) for r in range(side)}
    mesh = mesh.fail(chips=[(r, c) for r in range(side) for c in range(side) if (r, c) not in keep])
    up = np.full((1, mesh.size), -1, np.int8)
    for row, col in keep - {(depth, depth)}:
        up[0, mesh.index((row, col))] = E if col < depth else W if col > depth else S if row < depth else N
    plan = Plan(mesh, "star", np.ones(1), np.array([mesh.index((depth, depth))], np.int32), up, up)
    mm.verify(plan)
    flight = mm.simulate(plan, 1e6, net, chunks=chunks, order=order)
    on_link = net.overhead + 1e6 / chunks / net.bandwidth
    assert flight.seconds == pytest.approx((chunks - 1) * on_link + 2 * depth * (on_link + net.latency), rel=1e-12)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mesh", ["1x3 wrap=y", "1x9 wrap=y", "2x2", "2x5", "6x6"])
def test_ring_both_ways(order: Order, mesh: str) -> None:
    """The textbook: 2 (P - 1) steps of a 2P-th of the payload and one latency."""
    plan = mm.plan(mesh, algorithm="ring")
    chips = len(plan.mesh.live)
    assert len(plan) == 2 * chips
    net = Network(bandwidth=1e9, latency=3e-6, overhead=1e-6)
    flight = mm.simulate(plan, 1e6, net, chunks=2 * chips, order=order)
    step = net.overhead + 1e6 / (2 * chips) / net.bandwidth + net.latency
    assert flight.seconds == pytest.approx(2 * (chips - 1) * step, rel=1e-12)


@pytest.mark.parametrize("chunks", [2, 10, 64])
def test_one_link_shared_by_two_flows(chunks: int) -> None:
    """Parts of one flow, there from the start, and results of the other, which come behind them: one queue."""
    plan = flows("1x2", (0.5, 1, [E, -1]), (0.5, 0, [-1, W]))
    net = Network(bandwidth=1e9, latency=1e-7)
    flight = mm.simulate(plan, 1e6, net, chunks=chunks, order="first-come")
    # With one chunk each, the link stands idle until the first result has come.
    idle = net.latency if chunks == 2 else 0
    assert flight.seconds == pytest.approx(1e6 / net.bandwidth + net.latency + idle, rel=1e-12)
    assert flight.use().ravel() == pytest.approx([1e-3 / flight.seconds] * 2)


@given(meshes(most=5), st.integers(0, 2**20), nets, st.sampled_from(ORDERS), st.sampled_from(["trees", "rowcol"]), st.data())  # noqa: E501  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_twin(mesh: mm.Mesh, seed: int, net: Network, order: Order, algorithm: str, data: st.DataObject) -> None:
    """The compiled engines against the plain ones, to the last bit, with and without deaths on the way."""
    try:
        plan = mm.plan(mesh, algorithm=algorithm)
    except mm.PlanError:
        return
    table = schedule(plan, data.draw(st.integers(1, 40)), hop=data.draw(st.integers(1, 3)))
    if len(mesh.live) < 2:
        return
    dies = {}
    if data.draw(st.booleans()):
        row, col = mesh.chip(int(np.random.default_rng(seed).choice(mesh.live)))
        whole = mm.simulate(table, 1e6, net, order=order).seconds
        dies = {f"-chip@{row},{col}": whole * data.draw(st.sampled_from([0.0, 0.1, 0.5, 0.9]))}
    flight = mm.simulate(table, 1e6, net, order=order, dies=dies)
    dead = {}
    for hole, when in dies.items():
        after = mesh.fail(hole)
        dead = {int(link): when for link in mesh.directed_links if after.neighbour.ravel()[link] < 0}
    run = twin.first_come if order == "first-come" else twin.in_order
    begin, arrive = run(table, 1e6, net, dead)
    assert flight.begin.tolist() == begin
    assert flight.arrive.tolist() == arrive


def test_compiled_and_plain_kernels_agree() -> None:
    from meshmend.simulator.network.engine import first_come, in_order

    table = schedule(mm.plan("3x4 -chip@1,1", algorithm="trees"), 30)
    never = np.full(48, np.inf)
    columns = (table.link, table.sender, table.receiver, table.chunk, table.copy)
    service = np.where(np.arange(48) % 5 == 0, 1.7e-6, 1e-6)
    arguments = (*columns, 12, 30, service, 2e-6, 3e-7, never)
    for engine in (first_come, in_order):
        for compiled, plain in zip(engine(*arguments), engine.plain(*arguments), strict=True):
            assert np.array_equal(compiled, plain)


@given(meshes(most=6), st.sampled_from(ORDERS), nets)
@settings(max_examples=30, deadline=None)
def test_nothing_is_faster_than_its_links(mesh: mm.Mesh, order: Order, net: Network) -> None:
    plan = mm.plan(mesh, algorithm="trees")
    flight = mm.simulate(plan, 1e6, net, chunks=37, order=order)
    table = flight.schedule
    if not len(table):
        assert flight.seconds == 0
        return
    service = flight.service[table.link]
    assert (flight.arrive >= flight.begin + service + net.latency - 1e-15).all()
    for link in np.unique(table.link):
        begins = np.sort(flight.begin[table.link == link])
        assert (np.diff(begins) >= flight.service[link] * (1 - 1e-9)).all()  # one at a time
    assert flight.seconds >= np.bincount(table.link, service).max() * (1 - 1e-12)
    assert (flight.parts() == len(mesh.live)).all()
    assert (flight.parts(0.0) == 1).all()
    busy = np.bincount(table.link, service, minlength=mesh.link_numbers)[mesh.directed_links] / flight.seconds
    for bins in (1, 7):
        assert flight.use(bins).mean(1) == pytest.approx(busy)
        assert flight.use(bins).max() <= 1 + 1e-9


def test_without_latency_the_schedule_is_exact() -> None:
    """On links without latency a schedule's slots are real times, if its order is kept."""
    table = mm.plan("8x8 -2x2@2,2", algorithm="trees").schedule(500)
    flight = mm.simulate(table, 1e6, Network(bandwidth=1e9, latency=0))
    slot = flight.service.min()
    assert flight.seconds <= table.slots * slot * (1 + 1e-12)
    assert flight.seconds >= 0.99 * table.slots * slot


def test_a_death_on_the_way() -> None:
    plan = mm.plan("4x4", algorithm="trees")
    whole = mm.simulate(plan, 1e6)
    assert mm.simulate(plan, 1e6, dies={"-chip@1,1": whole.seconds}).seconds == whole.seconds  # too late to matter
    flight = mm.simulate(plan, 1e6, dies={"-chip@1,1": whole.seconds / 2})
    assert flight.seconds == math.inf
    early = flight.arrive <= whole.seconds / 2
    assert np.array_equal(flight.arrive[early], whole.arrive[early])
    assert not (np.isfinite(flight.arrive) & ~np.isfinite(whole.arrive)).any()
    dead = plan.mesh.index((1, 1))
    touches = (flight.schedule.sender == dead) | (flight.schedule.receiver == dead)
    assert (flight.arrive[touches & ~early] == math.inf).all()
    have = flight.parts()
    assert 1 < have.max() <= 16 and (have < 16).any()
    assert (flight.parts(whole.seconds / 2) <= have).all()
    link = mm.simulate(plan, 1e6, dies={"-link@0,0:0,1": 0.0})
    assert link.seconds == math.inf
    assert not np.isfinite(link.begin[(link.schedule.link == 1) | (link.schedule.link == 7)]).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"nbytes": 0}, "at least 1 byte"),
        ({"nbytes": math.inf}, "at least 1 byte"),
        ({"link": "tin-can"}, "network 'tin-can'.*tpu-v3"),
        ({"order": "lifo"}, "choose from schedule, first-come"),
        ({"dies": {"-chip@0,0": -1.0}}, "give a time of 0 or more"),
    ],
)
def test_bad_input(arguments: dict[str, object], message: str) -> None:
    plan = mm.plan("2x2")
    with pytest.raises(SimulateError, match=message):
        mm.simulate(plan, **{"nbytes": 1e6, **arguments})  # type: ignore[arg-type]


def test_bad_network() -> None:
    for bad in ({"bandwidth": 0.0}, {"bandwidth": -1.0}, {"bandwidth": math.inf}, {"adds": 0.0}, {"adds": math.nan}):
        with pytest.raises(SimulateError, match="bytes per second"):
            Network(**{"bandwidth": 1e9, "latency": 0.0, **bad})
    for bad in ({"latency": -1.0}, {"overhead": -1.0}, {"latency": math.nan}):
        with pytest.raises(SimulateError, match="give seconds, 0 or more"):
            Network(**{"bandwidth": 1e9, "latency": 0.0, **bad})
    assert network_for(mm.LinkSpeed(1e9, 1e-6)) == Network(bandwidth=1e9, latency=1e-6)
    table = mm.plan("2x2").schedule(4)
    assert isinstance(table, Schedule)
    with pytest.raises(SimulateError, match="this schedule has 4 chunks already"):
        mm.simulate(table, 1e6, chunks=5)
    with pytest.raises(SimulateError, match="already dead"):
        mm.simulate(mm.plan("3x3 -chip@1,1"), 1e6, dies={"-chip@1,1": 0.0})


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_trace(tmp_path: Path, name: str) -> None:
    flight = mm.simulate(mm.plan("2x3", algorithm="trees"), 1e6, chunks=6)
    flight.trace(tmp_path / name)
    import gzip

    raw = (tmp_path / name).read_bytes()
    events = json.loads(gzip.decompress(raw) if name.endswith(".gz") else raw)["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert len(spans) == len(flight.schedule)
    assert {span["tid"] for span in spans} == set(tracks) == set(flight.schedule.link.tolist())
    assert tracks[1] == "E to 0,1"
    assert max(span["args"]["arrives"] for span in spans) == pytest.approx(1e6 * flight.seconds)
    assert sorted(span["ts"] for span in spans) == pytest.approx(sorted(1e6 * flight.begin))
    with pytest.raises(mm.PictureError, match=r"ends in \.json or \.json\.gz"):
        flight.trace(tmp_path / "trace.txt")
    with pytest.raises(mm.PictureError, match="No such file"):
        flight.trace(tmp_path / "no" / "trace.json")


@pytest.mark.parametrize("name", ["heat.png", "heat.svg"])
def test_heat_map(tmp_path: Path, name: str) -> None:
    plan = mm.plan("4x4", algorithm="trees")
    mm.simulate(plan, 1e6).draw(tmp_path / name)
    first = (tmp_path / name).read_bytes()
    assert len(first) > 5000
    mm.simulate(plan, 1e6).draw(tmp_path / name)
    assert (tmp_path / name).read_bytes() == first
    mm.simulate(plan, 1e6, dies={"-chip@1,1": 1e-6}).draw(tmp_path / name)
