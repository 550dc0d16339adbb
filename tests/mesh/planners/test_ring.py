"""Rings: found where they exist, refused with a reason where they cannot, and even as plans."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshmend.errors import Disconnected, NoRing
from meshmend.mesh import Mesh
from meshmend.mesh.planners.plan import parents_of
from meshmend.mesh.planners.ring import FEWER_ROOTS, find_ring, ring

RINGS = [
    "4x4",
    "2x2",
    "2x7",
    "1x3 wrap=y",
    "16x32",
    "16x32 -4x2@6,12",
    "32x32 -4x2@14,15",
    "128x32 wrap=y -host@0,0 -host@20,20 -host@100,31",
    "8x8 -2x2@3,3",
    "8x8 -1x2@3,3",
    "16x32 -4x2@5,11",
    "16x32 -2x4@5,11 -1x2@0,3 -2x1@7,0 -2x2@14,28",
    "8x8 -1x2@3,3 -2x1@4,4",
    "8x8 -1x2@3,3 -2x1@4,5",
    "16x16 -chip@3,3 -chip@12,11",
    "8x8 -link@0,3:0,4 -link@3,3:4,3 -link@7,5:7,6",
    "6x6 -2x2@2,2 -link@0,2:1,2 -link@4,3:5,3",
    "3x3 wrap=xy",
    "5x7 wrap=xy",
    "5x4 wrap=x",
    "5x5 wrap=x",
    "15x15 wrap=xy -3x3@4,4",
    "127x33 wrap=y -chip@4,4 -chip@4,9",
]

BRIDGE = "5x7 -2x1@0,3 -2x1@3,3"
STARVED = "6x6 -chip@1,1 -chip@2,2 -chip@3,0 -chip@4,3"

FORBIDDEN = [
    ("1x1", "at least 3 live chips, and 1 "),
    ("1x2", "at least 3 live chips, and 2 "),
    ("1x5", "chip 0,0 has one live link"),
    ("4x4 -chip@0,1", "chip 0,0 has one live link"),
    ("4x4 -link@2,3:3,3", "chip 3,3 has one live link"),
    (BRIDGE, "every way between parts of 16 and 14 chips leads through chip 2,2"),
    ("3x3", "4 live chips of one colour and 5 of the other"),
    ("8x8 -chip@3,3", "32 live chips of one colour and 31 of the other"),
    ("8x8 wrap=xy -chip@3,3 -chip@5,5", "32 live chips of one colour and 30 of the other"),
    (STARVED, "the 7 chips 0,1 0,3 0,5 1,2 1,4 2,3 2,5 need 14 ends of ring links and can get at most 13"),
    ("2x5 wrap=y -chip@0,4 -link@0,1:1,1", "the 3 chips 0,0 1,1 1,4 need 6 ends of ring links and can get at most 5"),
]


def neighbours(mesh: Mesh) -> dict[tuple[int, int], set[tuple[int, int]]]:
    """The live links again, from the mesh's fields alone."""
    live = set(itertools.product(range(mesh.rows), range(mesh.cols))) - mesh.dead_chips
    near: dict[tuple[int, int], set[tuple[int, int]]] = {chip: set() for chip in live}
    for row, col in live:
        for there, fits in (
            (((row + 1) % mesh.rows, col), row + 1 < mesh.rows or mesh.wrap[0]),
            ((row, (col + 1) % mesh.cols), col + 1 < mesh.cols or mesh.wrap[1]),
        ):
            here = (row, col)
            if fits and there in live and not mesh.dead_links & {(here, there), (there, here)}:
                near[here].add(there)
                near[there].add(here)
    return near


def assert_ring(mesh: Mesh, order: np.ndarray) -> None:
    near = neighbours(mesh)
    chips = [divmod(int(index), mesh.cols) for index in order]
    assert len(chips) == len(near) and set(chips) == set(near)
    assert all(b in near[a] for a, b in zip(chips, chips[1:] + chips[:1], strict=True))


def ring_exists(mesh: Mesh) -> bool:
    """Whether there is a ring, by trying all paths from one chip."""
    near = neighbours(mesh)
    first = min(near)

    def extend(chip: tuple[int, int], seen: set[tuple[int, int]]) -> bool:
        if len(seen) == len(near):
            return first in near[chip]
        return any(extend(there, seen | {there}) for there in near[chip] - seen)

    return len(near) > 2 and extend(first, {first})


def random_mesh(rng: np.random.Generator, side: int) -> Mesh:
    """A connected mesh of up to side x side with a few dead chips and links and random wraps."""
    rows, cols = (int(size) for size in rng.integers(1, side + 1, 2))
    mesh = Mesh(rows, cols, (rows > 2 and bool(rng.integers(2)), cols > 2 and bool(rng.integers(2))))
    dead = rng.random(mesh.size) < rng.choice([0, 0.05, 0.15])
    dead[rng.integers(mesh.size)] = False
    mesh = mesh.fail(chips=[mesh.chip(index) for index in np.flatnonzero(dead)])
    cut = mesh.links[rng.random(len(mesh.links)) < rng.choice([0, 0.05])]
    return mesh.fail(links=[(mesh.chip(a), mesh.chip(mesh.neighbour[a, way])) for a, way in cut]).largest()


@pytest.mark.parametrize("text", RINGS)
def test_finds_a_ring(text: str) -> None:
    mesh = Mesh.parse(text)
    order = find_ring(mesh)
    assert_ring(mesh, order)
    assert order.dtype == np.int32
    assert np.array_equal(order, find_ring(Mesh.parse(text)))


@pytest.mark.parametrize(("text", "reason"), FORBIDDEN)
def test_says_why_there_is_none(text: str, reason: str) -> None:
    with pytest.raises(NoRing) as caught:
        find_ring(Mesh.parse(text))
    assert caught.value.proven
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_says_when_it_gave_up() -> None:
    """No ring exists here, but every chip can have two ring links: none of the quick reasons applies."""
    with pytest.raises(NoRing, match=r'gave up after 8 starts of up to 500 tries; algorithm="trees" works') as caught:
        find_ring(Mesh.parse("7x7 -2x4@0,0 -1x3@2,0 -4x1@3,6"))
    assert not caught.value.proven


def test_refuses_a_mesh_in_pieces() -> None:
    with pytest.raises(Disconnected):
        ring(Mesh.parse("4x4 -4x1@0,1"))


def test_same_ring_on_every_machine() -> None:
    """A ring that took 18 tries of the search, pinned: another one here would be another plan for the same mesh."""
    order = find_ring(Mesh.parse("5x3 wrap=y -chip@1,0"))
    assert order.tolist() == [0, 1, 4, 7, 6, 9, 10, 13, 12, 14, 11, 8, 5, 2]


@pytest.mark.parametrize("seed", range(20))
def test_whole_boards_always_leave_a_ring(seed: int) -> None:
    mesh = Mesh(16, 12, (False, bool(seed % 2))).fail_random(seed, boards=10 + seed).largest()
    assert_ring(mesh, find_ring(mesh))


@pytest.mark.parametrize("seed", range(10))
def test_finds_a_ring_with_few_links_to_spare(seed: int) -> None:
    """Nine in ten of the links that one ring leaves free die: that ring is still there, and hardly another."""
    rng = np.random.default_rng(seed)
    mesh = Mesh(8, 12).fail_random(seed, boards=3).largest()
    order = find_ring(mesh).tolist()
    kept = {frozenset(link) for link in zip(order, order[1:] + order[:1], strict=True)}
    links = [(int(chip), int(mesh.neighbour[chip, way])) for chip, way in mesh.links]
    dead = [link for link in links if frozenset(link) not in kept and rng.random() < 0.9]
    thin = mesh.fail(links=[(mesh.chip(a), mesh.chip(b)) for a, b in dead])
    assert_ring(thin, find_ring(thin))


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_a_ring_or_a_refusal(seed: int) -> None:
    mesh = random_mesh(np.random.default_rng(seed), 8)
    try:
        order = find_ring(mesh)
    except NoRing as refusal:
        assert not refusal.proven or len(mesh.live) > 16 or not ring_exists(mesh)
    else:
        assert_ring(mesh, order)


def test_misses_no_ring_on_small_meshes() -> None:
    rng = np.random.default_rng(7)
    outcome = {"found": 0, "proven": 0, "gave up": 0}
    while sum(outcome.values()) < 1500:
        mesh = random_mesh(rng, 5)
        if len(mesh.live) > 16:
            continue
        try:
            find_ring(mesh)
            outcome["found"] += 1
        except NoRing as refusal:
            assert not ring_exists(mesh), f"missed the ring of {mesh}"
            outcome["proven" if refusal.proven else "gave up"] += 1
    assert outcome["found"] > 300 and outcome["proven"] > 300
    assert outcome["gave up"] < 15, outcome


@pytest.mark.parametrize("text", RINGS)
def test_plan_is_right_and_even(text: str) -> None:
    mesh = Mesh.parse(text)
    plan = ring(mesh)
    chips = len(mesh.live)
    flows = 2 * (chips if chips <= 1024 else FEWER_ROOTS)
    assert len(plan) == flows and plan.algorithm == "ring" and plan.overlap
    assert np.allclose(plan.share, 1 / flows)
    assert np.array_equal(np.bincount(plan.root, minlength=mesh.size)[mesh.live] > 0, plan.up[:, mesh.live].min(0) < 0)
    for flow in range(0, flows, max(1, flows // 16)):
        for trees in (plan.up, plan.down):
            parent = parents_of(mesh, trees[flow : flow + 1])[0].tolist()
            for chip in mesh.live[:: max(1, chips // 16)].tolist():
                hops = 0
                while parent[chip] >= 0 and hops < chips:
                    chip, hops = parent[chip], hops + 1
                assert chip == plan.root[flow]
        assert (plan.up[flow] >= 0).sum() == (plan.down[flow] >= 0).sum() == chips - 1
    used = plan.load[plan.load > 0]
    assert len(used) == 2 * chips
    assert used.max() <= 1 and used.max() / used.min() < 1.01
    assert plan.algbw >= 1
    if chips <= 1024:
        assert np.allclose(used, (chips - 1) / chips)


def test_both_directions_carry_half() -> None:
    plan = ring(Mesh.parse("4x4"))
    forth, back = plan.up[:16], plan.up[16:]
    assert np.array_equal(plan.down[:16][back >= 0], back[back >= 0])
    assert np.array_equal(plan.down[16:][forth >= 0], forth[forth >= 0])
    assert sorted(plan.root[:16]) == sorted(plan.root[16:]) == list(range(16))


def test_is_quick() -> None:
    for text in ("32x32", "16x32 -4x2@5,11", "128x32 wrap=y -4x2@5,11"):
        begin = time.process_time()
        ring(Mesh.parse(text))
        assert time.process_time() - begin < 2, text
