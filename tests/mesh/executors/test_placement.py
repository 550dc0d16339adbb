"""Which device is which chip."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from meshmend import Mesh, PlanError
from meshmend.mesh.executors.placement import placed


def tpu(*coords: int) -> SimpleNamespace:
    return SimpleNamespace(platform="tpu", coords=coords)


def test_order_places_devices_that_have_no_coordinates() -> None:
    mesh = Mesh.parse("2x3 -chip@0,1")
    assert placed(mesh, "abcdef") == ["a", "c", "d", "e", "f"]
    assert placed(mesh, "acdef") == ["a", "c", "d", "e", "f"]
    gpus = [SimpleNamespace(platform="gpu", coords=(0, 0, 0), id=i) for i in range(6)]
    assert [device.id for device in placed(mesh, gpus)] == [0, 2, 3, 4, 5]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("axes", [(0, 1, 2), (1, 0, 2), (2, 0, 1), (0, 2, 1)])
def test_coordinates_place_tpus(whole: bool, axes: tuple[int, ...]) -> None:
    mesh = Mesh.parse("3x5 -2x2@0,0 -3x1@0,4")
    chips = [mesh.chip(i) for i in (range(mesh.size) if whole else mesh.live)]
    at = {tuple(np.array((row + 4, col + 2, 7))[list(axes)].tolist()): (row, col) for row, col in chips}
    devices = [tpu(*coords) for coords in at]
    np.random.default_rng(0).shuffle(devices)  # type: ignore[arg-type]
    assert [at[device.coords] for device in placed(mesh, devices)] == [mesh.chip(i) for i in mesh.live]


@pytest.mark.parametrize("axes", [(0, 1, 2), (2, 0, 1)])
def test_coordinates_place_tpus_in_three_dimensions(axes: tuple[int, ...]) -> None:
    mesh = Mesh.parse("2x3x4 -2x1x1@0,0,0 -chip@1,2,3")
    at = {tuple(np.array(mesh.chip(i))[list(axes)].tolist()): int(i) for i in mesh.live}
    devices = [tpu(*coords) for coords in at]
    np.random.default_rng(0).shuffle(devices)  # type: ignore[arg-type]
    assert [at[device.coords] for device in placed(mesh, devices)] == mesh.live.tolist()


def test_the_two_devices_of_a_chip_come_one_after_the_other() -> None:
    mesh = Mesh.parse("2x3 -chip@0,1")
    devices = [
        SimpleNamespace(platform="tpu", coords=(*mesh.chip(i), 0), core_on_chip=core, at=(int(i), core))
        for i in mesh.live
        for core in (1, 0)
    ]
    np.random.default_rng(0).shuffle(devices)  # type: ignore[arg-type]
    assert [device.at for device in placed(mesh, devices)] == [(i, core) for i in mesh.live for core in (0, 1)]


def test_a_line_and_a_single_tpu() -> None:
    assert [d.coords for d in placed(Mesh(1, 3), [tpu(0, c, 0) for c in (2, 0, 1)])] == [(0, c, 0) for c in range(3)]
    assert [d.coords for d in placed(Mesh(3, 1), [tpu(0, 0, c) for c in (2, 0, 1)])] == [(0, 0, c) for c in range(3)]
    assert placed(Mesh(1, 1), [only := tpu(3, 1, 0)]) == [only]


@pytest.mark.parametrize(
    ("mesh", "devices", "words"),
    [
        ("2x3", [tpu(i, 0) for i in range(5)], "5 devices for 2x3: give 6, one for each chip$"),
        ("2x3 -chip@0,0", [0] * 4, "4 devices for .*: give 6, one for each chip, or 5, one for each live chip"),
        ("2x2", [tpu(0, c // 2, 0) for c in range(4)], "2 devices for 2x2: give 4, one for each chip"),
        ("2x2", [tpu(0, c // 3, 0) for c in range(6)], "6 devices share 2 coordinates: give one .* or two of each"),
        ("1x2", [tpu(0, c // 2, 0) for c in range(3)], "3 devices share 2 coordinates"),
        ("2x2", [tpu(0, c, 0) for c in range(4)], "do not form 2x2"),
        ("2x4", [tpu(*at) for at in np.ndindex(2, 2, 2)], r"\(0, 0, 0\) to \(1, 1, 1\), do not form"),
    ],
)  # fmt: skip
def test_devices_that_do_not_form_the_mesh_are_refused(mesh: str, devices: list[object], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        placed(Mesh.parse(mesh), devices)
