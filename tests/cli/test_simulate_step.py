"""`meshmend simulate step`: what it prints and writes, and that a mistake is one sentence and exit code 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from meshmend import SimulateError, cli
from meshmend.base.registry import Registry
from meshmend.simulator.papers.failure_costs import faults
from meshmend.simulator.papers.recoveries import STARTS


def main(*words: str) -> int:
    return cli.main(["simulate", "step", *words])


def test_a_step(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    files = tmp_path / "step.json", tmp_path / "step.png"
    where = ["--mesh", "4x4", "-2x2@0,0", "--batch", "480", "--of-peak", "0.25"]
    assert main("resnet50", *where, "--json", str(files[0]), "--draw", str(files[1])) == 0
    out = capsys.readouterr().out
    assert "25,557,032 parameters, 24.5 GFLOP per example" in out
    assert "51.1 MB by trees on 4x4 -2x2@0,0" in out
    assert "25 % of the peak\n" in out
    assert "480 on 12 chips, 24 replicas" in out
    facts = json.loads(files[0].read_text())
    parts = facts["seconds"]
    inside = parts["compute"] + parts["inside"] + parts["sum"] - parts["hidden"] + parts["update"] + parts["input"]
    assert parts["total"] == pytest.approx(inside)
    assert (facts["mesh"], facts["payload"]) == ("4x4 -2x2@0,0", 51_114_064)
    assert sum(layer["params"] for layer in facts["layers"]) == facts["params"]
    assert files[1].read_bytes().startswith(b"\x89PNG")


def test_what_is_assumed_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("bert", "--chips", "16", "--hide", "--shard-update", "--wire", "float32", "--model-parallel", "4") == 0
    out = capsys.readouterr().out
    assert "30 % of the peak (assumed: set --of-peak)" in out
    assert "lamb, sharded" in out
    assert "inside" in out
    assert "hidden   -" in out


def test_a_cluster_has_a_ring(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("alexnet", "--machine", "cpu-cluster", "--chips", "8") == 0
    assert "by ring on 2x4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["resnet"], "model 'resnet'; choose from resnet50, bert, "),
        (["resnet"], "did you mean resnet50?"),
        ([], "which model? Give one of resnet50, "),
        (["bert", "--of-peak", "-1"], "of_peak=-1.0: the fraction of the peak must be above 0 and at most 1"),
        (["bert", "--payload", "0"], "a payload of 0 bytes"),
        (["bert", "--payload", "much"], "cannot read 'much' as a number of bytes"),
        (["bert", "--batch", "-1"], "a batch of -1"),
        (["bert", "--chips", "0"], "0 chips"),
        (["bert", "--chips", "4", "--mesh", "2x2"], "say the same thing twice"),
        (["bert", "--mesh", "5x5", "--algorithm", "ring"], "no ring goes through all live chips"),
        (["bert", "--machine", "abacus"], "choose from tpu-v3, cpu-cluster"),
        (["bert", "--table", "multipod"], "has its own models"),
        (["bert", "--chips", "4", "--json", "/nowhere/x.json"], "cannot write '/nowhere/x.json'"),
        (["bert", "--chips", "4", "--draw", "x.gif"], "give a path that ends in .png or .svg"),
    ],
)
def test_mistakes(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(*words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("meshmend: ")
    assert err.count("\n") == 1
    assert says in err


def test_a_table(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"mpi-faults": lambda tell: faults(["alexnet"], [4, 8], tell=tell)}
    monkeypatch.setattr(cli.simulate_step, "TABLES", Registry("table", SimulateError, small))
    files = tmp_path / "faults.json", tmp_path / "faults.svg"
    assert main("--table", "mpi-faults", "--json", str(files[0]), "--draw", str(files[1])) == 0
    out = capsys.readouterr().out
    assert "What one failure costs" in out
    assert out.count("AlexNet") == 8
    facts = json.loads(files[0].read_text())
    assert len(facts["rows"]) == 8
    assert facts["measured"]["starts"]["restart"]["total"] == STARTS["restart"].total
    assert files[1].read_text().startswith("<?xml")


def test_unknown_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("--table", "chairs") == 2
    told = "".join(capsys.readouterr())
    assert "chairs" in told
    assert "mesh-holes" in told
