"""auto: never predicted slower than an algorithm by name, right about it on the clock, and plain about why."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from meshmend import ALGORITHMS, LINKS, Disconnected, LinkSpeed, Mesh, PlanError, bound, plan
from meshmend.mesh.choose import CLOSE
from meshmend.mesh.planners import seconds
from meshmend.mesh.planners.plan import depths
from meshmend.mesh.planners.trees import trees
from tests.strategies import meshes

UNITS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0}
PAYLOADS = st.floats(3, 9).map(lambda power: 10**power)


@settings(max_examples=60)
@given(meshes(8), PAYLOADS, st.sampled_from(sorted(LINKS)))
@example(Mesh(16, 32), 1e3, "tpu-v3")
@example(Mesh.parse("8x16 -4x2@2,6"), 1e9, "ethernet-10g")
@example(Mesh(8, 8), 1e6, "ethernet-100g")
def test_auto_is_never_predicted_slower_than_an_algorithm_by_name(mesh: Mesh, nbytes: float, link: str) -> None:
    chosen = seconds(plan(mesh, nbytes, link=link), nbytes, link)  # the clock may prefer one predicted a little slower
    named = [trees(mesh, flows) for flows in (1, 3, 9)]
    for algorithm in ALGORITHMS:
        try:
            named.append(plan(mesh, nbytes, algorithm, link))
        except PlanError:
            assert algorithm != "trees"
    assert chosen <= min(seconds(other, nbytes, link) for other in named) * CLOSE


@settings(max_examples=60)
@given(meshes(8), PAYLOADS)
def test_why_begins_with_the_chosen_one_and_lists_the_others_by_time(mesh: Mesh, nbytes: float) -> None:
    made = plan(mesh, nbytes)
    head, times = made.why.split(": ")
    assert re.fullmatch(r"predicted for \S+ [kMG]?B", head)
    entries = re.findall(r"(trees|ring|rowpair|rowcol|scatter|[139] trees?) (over )?(\S+) (µs|ms|s)(?:, |$)", times)
    assert len(entries) == times.count(",") + 1
    few = {"1 tree", "3 trees", "9 trees"} if bound(mesh).value > 1 else set()
    assert {label for label, *_ in entries} >= {"trees"} | few
    label, over, number, unit = entries[0]
    assert label == made.algorithm or (label.endswith(("tree", "trees")) and made.algorithm == "trees")
    assert label == made.algorithm or len(made) <= int(label[0])
    assert not over
    clock = made.schedule(nbytes=nbytes, link="tpu-v3").seconds(nbytes, "tpu-v3")
    said = float(number) * UNITS[unit]
    assert said == pytest.approx(clock, rel=0.006) or said == pytest.approx(seconds(made, nbytes), rel=0.006)
    listed = [float(number) * UNITS[unit] for _, _, number, unit in entries]
    assert listed[1:] == sorted(listed[1:])
    assert listed[0] <= 1.02 * min(listed)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_an_algorithm_by_name_is_taken(algorithm: str) -> None:
    made = plan("4x4", algorithm=algorithm)
    assert made.algorithm == algorithm
    assert made.why == "asked for by name"


def test_text_and_mesh_are_the_same() -> None:
    assert plan("5x5 -chip@1,1").why == plan(Mesh(5, 5).fail((1, 1))).why


def test_payload_and_link_decide() -> None:
    small, large = plan("16x16", 1e3), plan("16x16", 1e9)
    assert len(small) < 10 < len(large)
    assert small.depth < large.depth
    assert large.algbw > small.algbw
    quick, slow = LinkSpeed(1e12, 1e-6), LinkSpeed(1e6, 1e-6)  # a megabyte takes a hop's time, or a million hops'
    assert len(plan("16x16", 1e6, link=quick)) < 10 < len(plan("16x16", 1e6, link=slow))


FAST = LinkSpeed(50 * 2**30, 0.5e-6)


@pytest.mark.parametrize("nbytes", [2**10, 2**16, 2**20], ids=["1KiB", "64KiB", "1MiB"])
@pytest.mark.parametrize("text", ["8x8", pytest.param("16x32", marks=pytest.mark.explore), "16x32 -4x2@6,12"])
def test_small_payloads_are_no_slower_on_the_clock_than_the_published_schemes(text: str, nbytes: int) -> None:
    made = plan(text, nbytes, link=FAST)
    auto = made.schedule(nbytes=nbytes, link=FAST).seconds(nbytes, FAST)
    for algorithm in ("ring", "rowpair", "rowcol"):
        try:
            other = plan(text, nbytes, algorithm, FAST)
        except PlanError:
            continue
        # Whatever flow its chunks take, they pay the latency of each hop: many a scheme need not go on the clock.
        hops = depths(other.mesh, other.up).max(1) + depths(other.mesh, other.down).max(1)
        if auto > 1.02 * hops.min() * FAST.latency:
            assert auto <= 1.02 * other.schedule(nbytes=nbytes, link=FAST).seconds(nbytes, FAST), algorithm


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"algorithm": "tree"}, "algorithm 'tree'.*auto, trees, ring, rowpair, rowcol"),
        ({"algorithm": None}, "algorithm None"),
        ({"link": "tpu-v9"}, "link 'tpu-v9'.*tpu-v3, tpu-v4, .*ethernet-100g, ethernet-10g"),
        ({"link": None}, "link None"),
        ({"nbytes": 0}, "nbytes=0: a payload has at least 1 byte"),
        ({"nbytes": -5}, "nbytes=-5: a payload has at least 1 byte"),
        ({"nbytes": float("nan")}, "nbytes=nan"),
        ({"nbytes": float("inf")}, "nbytes=inf"),
        ({"algorithm": "ring"}, "no ring goes through all live chips of 3x3"),
        ({"mesh": "3x3 -chip@0,0", "algorithm": "rowcol"}, "rowcol needs an intact mesh"),
        ({"mesh": "1x3", "algorithm": "rowpair"}, "rowpair needs at least 2 rows"),
    ],
)
def test_what_cannot_be_planned_is_said(options: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        plan(**{"mesh": "3x3", **options})


@pytest.mark.parametrize("algorithm", ["auto", *ALGORITHMS])
def test_a_mesh_that_falls_apart_is_not_planned(algorithm: str) -> None:
    with pytest.raises(Disconnected, match="2 disconnected components of 8, 4 chips"):
        plan("4x4 -4x1@0,1", algorithm=algorithm)


@pytest.mark.parametrize("numbers", [(0, 1), (-1, 1), (1, -1), (float("nan"), 0), (1, float("nan")), (1, float("inf"))])
def test_a_link_must_be_possible(numbers: tuple[float, float]) -> None:
    with pytest.raises(PlanError, match="the bandwidth must be positive"):
        LinkSpeed(*numbers)


@pytest.mark.parametrize("nbytes", [1, 1e3, 1e12])
def test_a_link_without_latency_can_be_planned_for(nbytes: float) -> None:
    assert plan("4x4", nbytes, link=LinkSpeed(1e9, 0)).algbw > 0


@pytest.mark.parametrize(
    "text",
    [
        "4x4 wrap=xy", "8x8 wrap=xy", pytest.param("16x16 wrap=y", marks=pytest.mark.explore), "6x6", "8x8 -2x2@2,2",
        "5x7 -chip@2,3",
    ],
)  # fmt: skip
@pytest.mark.parametrize("link", ["tpu-v3", "ethernet-10g"])
def test_on_the_clock_auto_is_never_slower_than_another_scheme(text: str, link: str) -> None:
    mesh = Mesh.parse(text)
    for nbytes in (1e4, 3e5, 1e6):
        times = {}
        for algorithm in ("auto", *ALGORITHMS):
            with contextlib.suppress(PlanError):
                made = plan(mesh, nbytes, algorithm, link)
                times[algorithm] = made.schedule(nbytes=nbytes, link=link).seconds(nbytes, link)
        assert times["auto"] <= 1.011 * min(times.values()), (nbytes, times)
