"""What is read from programs that Google's compiler made, from made-up ones, and what the page says of real ones."""

from __future__ import annotations

import importlib.util
import re
import sys
from types import ModuleType

import pytest

from tests.figures import ROOT

PAGE = ROOT / "docs" / "results" / "tpu.md"
LOOP = """HloModule jit_reduce

%wide.body.1 (p: (s32[], f32[65,8,128])) -> (s32[], f32[65,8,128]) {
  %s.1 = (f32[1,8,128]{2,1,0:T(8,128)}, f32[1,8,128]{2,1,0}, u32[]) collective-permute-start(%a), channel_id=1
  %s.2 = (f32[1,8,128]{2,1,0:T(8,128)}, f32[1,8,128]{2,1,0}, u32[]) collective-permute-start(%b), channel_id=1
  %small = f32[1,8,128]{2,1,0:T(8,128)S(1)} copy(%c)
  %d.1 = f32[1,8,128]{2,1,0:T(8,128)} collective-permute-done(%s.1)
  %d.2 = f32[1,8,128]{2,1,0:T(8,128)} collective-permute-done(%s.2)
}

ENTRY %main (x: f32[65536]) -> f32[65536] {
  %w = (s32[], f32[65,8,128]) while(%t), condition=%cond, body=%wide.body.1
}
"""


@pytest.fixture(scope="module")
def tpu() -> ModuleType:
    spec = importlib.util.spec_from_file_location("tpu_page", ROOT / "benchmarks" / "tpu.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "tpu_page", module)  # for its dataclasses
        spec.loader.exec_module(module)
    return module


def test_the_loop_is_read(tpu: ModuleType) -> None:
    assert tpu.read_program(LOOP, 64) == tpu.Loop(2, 2, 0)
    late = next(line for line in LOOP.splitlines(keepends=True) if "%s.2 =" in line)
    one_by_one = LOOP.replace(late, "").replace("  %d.2", f"{late}  %d.2")
    assert tpu.read_program(one_by_one, 64) == tpu.Loop(2, 1, 0)
    assert tpu.read_program(re.sub(r"collective-permute-start", "collective-permute", LOOP), 64).at_once == 1
    assert tpu.read_program(LOOP.replace("body=%wide.body.1", "body=%other"), 64).permutes == 0


@pytest.mark.parametrize(
    "copy",
    [
        "%c = f32[65,8,128]{2,1,0:T(8,128)} copy(%x)",
        "%c = (f32[65,8,128]{2,1,0:S(1)}, f32[65,8,128]{2,1,0}, u32[]{:S(2)}) copy-start(%x)",
    ],
)
def test_a_copy_of_the_buffer_is_found(tpu: ModuleType, copy: str) -> None:
    assert tpu.read_program(LOOP.replace("  %small", f"  {copy}\n  %small"), 64).copies == 1


def test_what_psum_became_is_read(tpu: ModuleType) -> None:
    ring = r'"emitter":"RotatedPincerEmitter","strategy":"StrategyRing","debug":"\nStrategyRing{colors:1 phases:1 cores'
    assert tpu.algorithm_of(ring) == "ring, 1 colour"
    assert tpu.algorithm_of(ring.replace("StrategyRing{colors:1", "StrategyND{colors:2")) == "StrategyND, 2 colours"
    assert tpu.algorithm_of('"emitter":"RingSumEmitter"') == "RingSumEmitter"


def table(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if re.match(r"\| (v|tpu)\d\w*:", line)]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_the_page_keeps_its_limits(tpu: ModuleType) -> None:
    loops, kernels = map(table, PAGE.read_text().split("## The Pallas kernel"))
    for rows, cases in ((loops, tpu.CASES), (kernels, tpu.KERNEL_CASES)):
        named = [line.split(maxsplit=1) for line in cases.strip().splitlines()]
        assert [row[:2] for row in rows] == [[topology, f"`{mesh}`"] for topology, mesh in named]
    compiled = [row for row in loops if "–" not in row[5]]
    assert len(compiled) >= 20 and len({row[0].split(":")[0] for row in compiled}) == 6
    for row in compiled:
        assert float(row[7].removesuffix(" s")) <= tpu.SLOWEST and float(row[10]) <= tpu.LARGEST, row
        assert row[9] == "0" and row[8][0] in "46", row
    for row in kernels:
        assert row[4] == "1" and float(row[5].removesuffix(" s")) <= tpu.SLOWEST and float(row[6]) <= tpu.LARGEST, row
