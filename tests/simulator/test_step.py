"""A step's time: its parts add up, and they move the way they must."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshmend import LinkSpeed, Mesh, SimulateError, plan, simulate
from meshmend.mesh.planners import seconds
from meshmend.mesh.planners.rowcol import rows_first
from meshmend.mesh.proof import verify
from meshmend.simulator.step.hardware import MACHINES, machine, mesh_of
from meshmend.simulator.step.model_parallel import divided_sum, norm_seconds
from meshmend.simulator.step.models import MODELS, Layer, Model, model
from meshmend.simulator.step.run import Evaluations, Rates, calibrate, calibrate_rate, evaluation, line
from meshmend.simulator.step.step import Setting, Step, step
from meshmend.simulator.step.update import MOVED

TPU = MACHINES["tpu-v3"]


def on(name: str, mesh: str | Mesh = "4x4", **options: Any) -> Setting:
    where = Mesh.parse(mesh) if isinstance(mesh, str) else mesh
    return Setting(**{"model": model(name), "mesh": where, "batch": 16 * len(where.live), "of_peak": 0.3, **options})


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(MODELS)),
    mesh=st.sampled_from(["1x1", "1x2", "4x4", "4x4 -2x2@0,0", "8x4", "8x8 -chip@3,3"]),
    batch=st.integers(1, 5000),
    of_peak=st.floats(0.01, 1),
    wire=st.sampled_from(["bf16", "float32"]),
    shard=st.booleans(),
    hide=st.booleans(),
    fixed=st.floats(0, 0.1),
)
def test_parts_add_up(
    name: str, mesh: str, batch: int, of_peak: float, wire: str, shard: bool, hide: bool, fixed: float
) -> None:
    setting = on(name, mesh, batch=batch, of_peak=of_peak, wire=wire, shard_update=shard, hide=hide, fixed=fixed)
    done = step(setting)
    waited = done.inside + done.sum - done.hidden + done.update + done.input
    assert done.total == pytest.approx(done.compute + done.fixed + waited)
    assert done.fixed == pytest.approx(fixed), "one core per replica"
    assert min(done.compute, done.inside, done.sum, done.hidden, done.update, done.input) >= 0
    assert done.hidden <= done.sum * (0.5 if shard else 1) * (1 + 1e-9)
    assert done.hidden <= (done.compute + done.fixed) * 2 / 3 * (1 + 1e-9), "nothing hides but behind the backward pass"
    assert step(replace(setting, hide=False)).total >= done.total
    assert step(replace(setting, shard_update=not shard)).update != done.update or setting.replicas == 1


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(["resnet50", "bert", "dlrm", "ssd"]),
    slow=st.floats(1e8, 1e11),
    faster=st.floats(1, 100),
    cores=st.sampled_from([1, 4]),
)
def test_faster_links_never_make_a_step_longer(name: str, slow: float, faster: float, cores: int) -> None:
    cores = min(cores, model(name).most_cores)
    totals = [
        step(on(name, machine=replace(TPU, link=LinkSpeed(rate, 1e-6)), algorithm="rowcol", cores=cores)).total
        for rate in (slow, slow * faster)
    ]
    assert totals[1] <= totals[0] * (1 + 1e-9)


@pytest.mark.parametrize("what", ["peak", "memory", "host_input"])
def test_a_faster_machine_makes_a_step_shorter(what: str) -> None:
    slow = replace(TPU, host_input=1e6)
    fast = replace(slow, **{what: 2 * getattr(slow, what)})
    assert step(on("resnet50", machine=fast)).total <= step(on("resnet50", machine=slow)).total
    assert step(on("resnet50", machine=slow)).input > 0, "a slow host shows"


@pytest.mark.parametrize("name", ["resnet50", "bert", "ssd", "transformer"])
def test_sharding_the_update(name: str) -> None:
    whole, sharded = (step(on(name, "8x8", shard_update=shard)) for shard in (False, True))
    assert whole.update == pytest.approx(model(name).params * MOVED[model(name).optimizer] / 450e9)
    waits = 2 * 14e-6 + sharded.sum * model(name).largest if model(name).optimizer in ("lars", "lamb") else 0.0
    assert sharded.update == pytest.approx(whole.update / 128 + waits), "every chip's two cores update their share"
    assert sharded.compute == whole.compute
    assert sharded.sum == pytest.approx(whole.sum, rel=0.1), "trees become deeper, and no link carries more"


@pytest.mark.parametrize("algorithm", ["rowcol", "ring"])
def test_where_every_chip_is_a_root_the_update_is_shared_evenly(algorithm: str) -> None:
    whole, sharded = (step(on("ssd", "8x8", shard_update=shard, algorithm=algorithm)) for shard in (False, True))
    assert sharded.update == pytest.approx(whole.update / 128)


def test_norms_of_whole_layers_are_waited_for() -> None:
    """LARS waits where SGD with momentum does not: for the way there and back, and the largest layer's broadcast."""
    lars = model("resnet50")
    momentum = replace(lars, optimizer="momentum")
    for algorithm, overlapping in (("trees", True), ("rowcol", False)):
        one, other = (
            step(replace(on("resnet50", "8x8", shard_update=True, algorithm=algorithm), model=made))
            for made in (replace(lars, optimizer="lars"), momentum)
        )
        moved = other.update * (MOVED["lars"] / MOVED["momentum"])
        waits = 2 * 14e-6 + (one.sum * lars.largest if overlapping else 0.0)
        assert one.update == pytest.approx(moved + waits)
    assert step(on("resnet50", "1x1", shard_update=True)).update < step(on("resnet50", "1x1")).update


def test_batch_norm_over_several_replicas() -> None:
    """Within a replica nothing is sent; a larger group is farther apart."""
    ssd = model("ssd")
    assert ssd.norms == 29
    spans = [norm_seconds(ssd, TPU, 1, 4, span) for span in (0, 4, 8, 64, 512)]
    assert spans[0] == spans[1] == 0.0
    assert spans[2] == pytest.approx(2 * 29 * TPU.begin), "two cores of one chip"
    assert spans[3] == pytest.approx(2 * 29 * (2 * 4 * TPU.link.latency + TPU.begin)), "eight chips, 2x4"
    assert spans[4] > spans[3]
    assert step(on("ssd", norm_span=64)).inside > step(on("ssd")).inside == 0


@pytest.mark.parametrize("algorithm", ["ring", "rowpair", "trees"])
@pytest.mark.parametrize("name", ["resnet50", "bert"])
def test_losing_a_host_never_speeds_up(name: str, algorithm: str) -> None:
    whole, hole = (step(on(name, mesh, algorithm=algorithm)) for mesh in ("8x8", "8x8 -host@4,4"))
    assert hole.throughput < whole.throughput
    same = step(on(name, "8x8 -host@4,4", algorithm=algorithm, batch=16 * 64))
    assert same.compute > whole.compute, "the same batch on fewer chips"


def test_the_sum_is_the_simulated_plan() -> None:
    setting = on("resnet50", "4x4 -2x2@0,0", algorithm="ring")
    made = plan(setting.mesh, algorithm="ring")
    nbytes = model("resnet50").gradient_bytes()
    assert step(replace(setting, simulated=True)).sum == simulate(made, nbytes, TPU.link).seconds
    assert step(setting).sum == seconds(made, nbytes, TPU.link)
    assert step(replace(setting, payload=1e9)).sum > step(setting).sum


def test_hiding_waits_for_the_first_layer() -> None:
    """AlexNet's parameters are in its last layers, whose gradients come first; a table is the first layer."""
    late, early = step(on("alexnet", hide=True)), step(on("transformer", hide=True))
    table = next(layer for layer in model("transformer").layers if layer.name == "words").params
    assert late.exposed < 0.01 * late.sum
    assert early.exposed >= early.sum * table / model("transformer").params * 0.999


def test_replicas_without_an_example_are_idle() -> None:
    few = [step(on("ssd", mesh, batch=64)) for mesh in ("4x4", "8x4", "8x8")]
    assert few[0].compute == pytest.approx(2 * few[1].compute)
    assert few[2].compute == few[1].compute, "64 cores have one example each, and so do 64 of 128"
    divided = step(on("ssd", "8x8", batch=64, cores=8))
    assert divided.compute < few[2].compute
    assert divided.inside > 0


@pytest.mark.parametrize("name", ["resnet50", "bert", "transformer", "ssd", "maskrcnn"])
def test_model_parallelism(name: str) -> None:
    steps = {cores: step(on(name, "8x8", batch=128, algorithm="rowcol", cores=cores)) for cores in (1, 2, 4, 8)}
    assert steps[1].inside == steps[2].inside == 0, "two cores of a chip share its memory"
    assert steps[4].inside > 0
    assert steps[8].compute >= steps[1].compute * 0.999, "the same work, divided at best evenly"
    if model(name).sharded:
        assert steps[8].sum < 0.5 * steps[1].sum
        assert steps[8].update < steps[1].update
    else:
        assert steps[8].sum == steps[1].sum


def test_rows_first_is_right_and_shares_columns() -> None:
    made = rows_first(mesh_of(64))
    verify(made)
    vertical = made.load.reshape(-1, 4)[:, [0, 2]].max()
    assert 4 * vertical < 2 * made.load.reshape(-1, 4)[:, [1, 3]].max(), "so tiles of four may share the columns"
    assert divided_sum(mesh_of(64), "rowcol", 1e8, TPU.link, 4) > 0


@given(of_peak=st.floats(0.05, 1), fixed=st.floats(0, 0.1))
def test_calibrating_finds_the_fixed_time_and_the_part_of_the_peak(of_peak: float, fixed: float) -> None:
    """Steps made with two numbers give them back, evaluations included."""
    truth, every = Rates(of_peak, fixed), Evaluations(5000, 50)
    points = []
    for mesh, batch in (("4x4", 512), ("8x8", 256)):
        setting = on("resnet50", mesh, batch=batch, shard_update=True)
        made = replace(setting, of_peak=of_peak, fixed=fixed)
        done = step(made)
        seconds = done.total - done.input + evaluation(made, every.examples) / every.every
        points.append((line(setting, every), seconds))
        assert points[-1][0].at(truth) == pytest.approx(seconds)
    found = calibrate((points[0], points[1]))
    assert found.of_peak == pytest.approx(of_peak, rel=1e-6)
    assert found.fixed == pytest.approx(fixed, abs=1e-8)
    assert calibrate_rate((points[0][0], points[0][0].at(Rates(of_peak, 0.0)))).of_peak == pytest.approx(of_peak)


def test_calibrating_on_the_impossible() -> None:
    every = Evaluations(100, 10)
    few, many = (line(on("resnet50", batch=batch), every) for batch in (32, 3200))
    with pytest.raises(SimulateError, match="cannot separate the fixed time from the rate"):
        calibrate(((few, 0.1), (few, 0.2)))
    with pytest.raises(SimulateError, match=r"steps of 1 µs and 2 µs contradict each other"):
        calibrate(((few, 1e-6), (many, 2e-6)))
    with pytest.raises(SimulateError, match="contradict each other: they need a fixed time of -"):
        calibrate(((few, 0.01), (many, 10.0)))


def test_model_parallelism_divides_the_fixed_time() -> None:
    whole, divided = (step(on("transformer", "8x8", batch=64, fixed=0.02, cores=cores)) for cores in (1, 4))
    assert whole.fixed == pytest.approx(0.02)
    assert divided.fixed == pytest.approx(0.02 * model("transformer").part(4))
    assert divided.fixed < 0.006


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"batch": 0}, "a batch of 0"),
        ({"of_peak": -0.3}, "above 0 and at most 1"),
        ({"of_peak": 0}, "above 0 and at most 1"),
        ({"of_peak": float("nan")}, "above 0 and at most 1"),
        ({"of_peak": 30}, "above 0 and at most 1"),
        ({"fixed": -1.0}, "the fixed time of a step must be finite"),
        ({"payload": 0}, "a payload of 0 bytes"),
        ({"payload": -5}, "a payload of -5 bytes"),
        ({"payload": float("inf")}, "payload of inf"),
        ({"algorithm": "fast"}, "choose from trees, ring, rowpair, rowcol"),
        ({"wire": "int8"}, "choose from bf16, float32"),
        ({"cores": 3}, "can have 1, 2, 4, 8"),
        ({"cores": 0}, "can have 1, 2, 4, 8"),
        ({"cores": 8, "mesh": Mesh.parse("1x2")}, "1x2 has 4 cores"),
        ({"machine": MACHINES["cpu-cluster"]}, "has a switch: take ring"),
    ],
)
def test_what_cannot_be(options: dict[str, Any], says: str) -> None:
    with pytest.raises(SimulateError, match=says):
        on("resnet50", **{"mesh": "4x4", **options})


def test_kernels_are_divided_only_on_whole_meshes() -> None:
    with pytest.raises(SimulateError, match="need an intact mesh whose rows are a multiple of 2"):
        step(on("bert", "4x4 -chip@0,0", cores=4))


def test_machines() -> None:
    with pytest.raises(SimulateError, match="choose from tpu-v3, cpu-cluster"):
        machine("tpu")
    with pytest.raises(SimulateError, match="peak=-1"):
        replace(TPU, peak=-1)
    assert [str(mesh_of(chips)) for chips in (1, 7, 512, 1024, 2048, 4096)] == [
        "1x1", "1x7", "16x32", "32x32 wrap=xy", "64x32 wrap=y", "128x32 wrap=y",
    ]  # fmt: skip
    with pytest.raises(SimulateError, match="0 chips"):
        mesh_of(0)


def test_a_model_of_ones_own() -> None:
    """The parts of a step follow from the layers given, with nothing else known of the model."""
    own = Model("own", "Own", "one layer", (Layer("only", 1000, 61.5e12),), optimizer="sgd", input_bytes=1)
    done = step(Setting(model=own, mesh=mesh_of(1), batch=2, of_peak=0.5))
    assert isinstance(done, Step)
    assert (done.compute, done.sum) == (pytest.approx(6.0), 0.0)
