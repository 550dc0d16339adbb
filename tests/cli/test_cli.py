"""The command line: what it prints and writes, and that a mistake is one message and exit code 2."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from meshmend import Mesh, Plan, cli, load, save, verify
from meshmend.cli import audit, chaos, demo, doctor, testbed
from meshmend.cli import plan as mesh
from meshmend.cli import run as run_verb
from meshmend.demo import story
from meshmend.testbed import privileges

HOLED = "6x6 -2x2@2,2 -link@0,2:0,3"


class Ran(NamedTuple):
    """What a command left."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")

    def main(*words: str) -> Ran:
        code = cli.main(list(words))
        return Ran(code, *capsys.readouterr())

    return main


def start(*words: str, folder: Path, **env: str) -> Ran:
    """Run a command in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "meshmend", *words],
        cwd=folder,
        env={**os.environ, "COLUMNS": "160", **env},
        capture_output=True,
        encoding="utf-8",
        timeout=300,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def refused(ran: Ran, *says: str) -> None:
    """One line that says so, exit code 2, and no stack trace."""
    assert ran.code == 2
    assert "Traceback" not in ran.err + ran.out
    assert ran.err.startswith("meshmend: ")
    assert ran.err.count("\n") == 1
    for text in says:
        assert text in ran.err


def planned(ran: Ran) -> str:
    """The mesh in the figures of a plan that was printed."""
    assert (ran.code, ran.err) == (0, "")
    assert "proof  every flow is a pair of spanning trees" in ran.out
    found = re.search(r"^mesh   (.*), [\d,]+ live chips?\b", ran.out, re.MULTILINE)
    assert found
    return found[1]


@pytest.mark.parametrize(
    ("words", "mesh"),
    [
        (["4x5"], "4x5"),
        (["6x6", "-2x2@2,2", "-link@0,2:0,3"], HOLED),
        ([HOLED], HOLED),
        (["6x6 -2x2@2,2", "-link@0,2:0,3"], HOLED),
        (["6x6", "-chip@1,1", "--nbytes", "1MB", "wrap=xy"], "6x6 wrap=xy -chip@1,1"),
        (["--nbytes", "1MB", "6x6", "-2x2@2,2"], "6x6 -2x2@2,2"),
        (["--algorithm", "trees", "tpu-v3-512", "-host@6,12"], "16x32 -4x2@4,12"),
        (["tpu-v3-512", "-board@0,0", "--algorithm=trees"], "16x32 -2x2@0,0"),
        (["-2x2@2,2", "6x6"], "6x6 -2x2@2,2"),
        (["1x1"], "1x1"),
        (["0-1-2-3-0", "0-2"], "0-1-2-0-3-2"),
        (["--nbytes", "1MB", "0-1-2-3-0", "0-2", "1-3", "-chip@3", "~0.5@0:1"], "0-1-2-0-3-1 2-3 -chip@3 ~0.5@0:1"),
        (["0-1-2-3-0 0-2", "-link@0:1", "--algorithm", "trees"], "0-1-2-0-3-2 -link@0:1"),
        (["4x4", "-4x1@0,1", "--largest"], "4x4 -4x2@0,0"),
    ],
)
def test_plan_takes_a_mesh_as_people_type_it(run: Run, words: list[str], mesh: str) -> None:
    assert planned(run("plan", *words)) == mesh


def test_plan_in_stages_is_printed_with_its_floor_and_saved(run: Run) -> None:
    ran = run("plan", "6x6 wrap=xy", "--staged", "--nbytes", "2kB", "--json", "staged.mm")
    assert (ran.code, ran.err) == (0, "")
    assert "staged (roots 1, 1 apart), 1 flow, 3 + 3 = 6 hops" in ran.out
    assert "floor  no plan takes less than 6.01 µs: chip 0,0 is 6 hops from its farthest" in ran.out
    assert "proof  every chip gets every chip's part exactly once" in ran.out
    assert "plan      correct: 1 flow on 6x6 wrap=xy, staged" in run("verify", "staged.mm").out
    refused(run("simulate", "staged.mm"), "holds a StagedPlan, not a plan of trees")
    refused(run("plan", "6x6", "--staged", "--draw", "x.svg"), "--draw cannot be combined with --staged")
    refused(run("plan", "6x6", "--staged", "--groups", "2x2"), "--staged applies only to all-reduces")
    assert "floor  no plan takes less than" in run("plan", HOLED).out


def test_plan_prints_the_plan_and_writes_what_was_asked_for(run: Run) -> None:
    ran = run("plan", HOLED, "--draw", "plan.svg", "--json", "plan.json", "--flow", "3")
    assert planned(ran) == HOLED
    made = load("plan.json")
    assert isinstance(made, Plan)
    verify(made)
    assert str(made.mesh) == HOLED
    assert ran.out.startswith(str(made))
    assert ran.out.splitlines()[-2:] == ["drew   plan.svg", "wrote  plan.json"]
    assert Path("plan.svg").read_text() == made.draw(flow=3)
    assert sorted(os.listdir()) == ["plan.json", "plan.svg"]


def test_random_failures_are_those_of_the_seed(run: Run) -> None:
    words = ["plan", "8x8", "--random", "chips=5%,links=2", "--seed", "3", "--largest"]
    expected = Mesh(8, 8).fail_random(3, chips=0.05, links=2).largest()
    assert planned(run(*words)) == str(expected)
    assert len(expected.dead_chips) >= 3
    assert planned(run(*words[:-2], "4", "--largest")) != str(expected)


@pytest.mark.parametrize(
    ("nbytes", "says"),
    [
        ("102MB", "102 MB"),
        ("64 MiB", "67.11 MB"),
        ("1.5e6", "1.5 MB"),
        ("2gb", "2 GB"),
        ("1T", "1000 GB"),
        ("3e3", "3 kB"),
        ("7", "7 bytes"),
    ],
)
def test_payloads_have_units(run: Run, nbytes: str, says: str) -> None:
    ran = run("plan", "3x3", "--nbytes", nbytes)
    assert planned(ran)
    assert f"predicted for {says}: " in ran.out


@pytest.mark.parametrize("name", ["plan.json", "plan.mm"])
def test_a_graph_is_planned_verified_and_simulated(run: Run, name: str) -> None:
    assert planned(run("plan", "0-1-2-3-4-0", "0-2", "-chip@4", "--json", name)) == "0-1-2-0-4-3-2 -chip@4"
    ran = run("verify", name)
    assert ran.code == 0 and ran.out.startswith("plan      correct: ") and "schedule  correct: " in ran.out
    ran = run("simulate", "0-1-2-3-0", "0-2", "--fail", "chip@2", "--at", "1us")
    assert ran.code == 0 and "chip@2 dies after 1 µs, 3 chips are left" in ran.out
    refused(
        run("plan", "0-1-2-0", "--algorithm", "ring"), "ring needs a grid of rows and columns, and 0-1-2-0 is a graph"
    )


def test_verify_proves_what_plan_wrote(run: Run) -> None:
    planned(run("plan", "6x6", "-2x2@2,2", "--json", "p.json"))
    ran = run("verify", "p.json", "--chunks", "300")
    assert (ran.code, ran.err) == (0, "")
    plan_line, schedule_line = ran.out.splitlines()
    assert re.fullmatch(r"plan +correct: \d+ flows on 6x6 -2x2@2,2, 1\.5\d\d B \(\S+ % of the bound\)", plan_line)
    assert re.fullmatch(
        r"schedule +correct: \d+ transfers of 300 chunks in \d+ slots, 1\.\d+ B with .*draining", schedule_line
    )


def put(tree: str, place: int, letter: str) -> str:
    return tree[:place] + letter + tree[place + 1 :]


TAMPERED: list[tuple[str, int, str, str]] = [
    # the tree, the place, the letter put there, what is said about it
    ("up", 0, "N", "flow 1, up tree: chip 0,0 goes N, where there is no live link"),
    ("up", 0, ".", "flow 1, up tree: chip 0,0 is cut off"),
    ("down", 8, "S", "flow 1, down tree: chip 1,2 goes S, where there is no live link"),
    ("down", 14, "E", "flow 1, down tree: chip 2,2 is dead, but takes part"),
]


@pytest.mark.parametrize(("tree", "place", "letter", "says"), TAMPERED)
def test_verify_names_flow_and_chip_of_a_tampered_letter(
    run: Run, tree: str, place: int, letter: str, says: str
) -> None:
    planned(run("plan", "6x6", "-2x2@2,2", "--json", "p.json"))
    data = json.loads(Path("p.json").read_text())
    assert data["flows"][1][tree][place] != letter
    data["flows"][1][tree] = put(data["flows"][1][tree], place, letter)
    Path("p.json").write_text(json.dumps(data))
    ran = run("verify", "p.json")
    refused(ran, says)
    assert ran.out == ""


def test_verify_finds_a_circle_a_moved_root_and_a_lost_share(run: Run) -> None:
    planned(run("plan", "6x6", "-2x2@2,2", "--json", "p.json"))
    good = json.loads(Path("p.json").read_text())

    def tampered(**values: Any) -> Ran:
        flows = [{**good["flows"][0], **values}, *good["flows"][1:]]
        Path("p.json").write_text(json.dumps({**good, "flows": flows}))
        return run("verify", "p.json")

    circle = put(put(good["flows"][0]["up"], 0, "E"), 1, "W")
    refused(tampered(up=circle), "flow 0, up tree: chip 0,0 never reaches the root")
    row, col = good["flows"][0]["root"]
    refused(tampered(root=[5 - row, 5 - col]), f"flow 0, up tree: chip {5 - row},{5 - col} is the root")
    refused(tampered(share=0.5), "the shares add up to")
    refused(tampered(share=0), "flow 0 has share 0.0")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["plan", "4x"], ["cannot read '4x'", "16x32", "tpu-v3-1024"]),
        (["plan", ""], ["the mesh is empty"]),
        (["plan", "4x", "-2x2@0,0"], ["cannot read '4x' at character 1 of '4x -2x2@0,0'"]),
        (["plan", "4x4", "-2x2@9,9"], ["cannot read '-2x2@9,9' at character 5 of '4x4 -2x2@9,9'", "rows 0 to 3"]),
        (["plan", "4x4", "-chp@1,1"], ["cannot read '-chp@1,1' at character 5", "-chip@R,C"]),
        (["plan", "4x4", "wrap=z"], ["cannot read 'wrap=z'", "xy"]),
        (["plan", "4x4", "-4x4@0,0"], ["all 16 chips of 4x4 are dead"]),
        (["plan", "9999999x9999999"], ["9999999x9999999"]),
        (["plan", "4x4", "--nbytes", "many"], ["cannot read 'many' as a number of bytes", "64MiB"]),
        (["plan", "4x4", "--nbytes", "1.2.3MB"], ["cannot read '1.2.3MB' as a number of bytes"]),
        (["plan", "4x4", "--nbytes", "0"], ["at least 1 byte"]),
        (["plan", "4x4", "--nbytes", "1e999"], ["nbytes=inf"]),
        (["plan", "4x4", "--link", "string"], ["link 'string'", "ethernet-100g"]),
        (["plan", "4x4", "--random", "chips"], ["cannot read 'chips' in --random", "chips=5%"]),
        (["plan", "4x4", "--random", "chips=1.2.3"], ["cannot read 'chips=1.2.3' in --random"]),
        (["plan", "4x4", "--random", "chips=2,pods=1"], ["cannot fail pods at random"]),
        (["plan", "4x4", "--random", "chips=99"], ["chips=99", "choose 0 to 16"]),
        (["plan", "4x4", "--random", "chips=1", "--seed=-1"], ["seed=-1"]),
        (["plan", "3x3", "--algorithm", "ring"], ["no ring goes through all live chips of 3x3"]),
        (["plan", "3x3", "--json", "no/such/folder.json"], ["cannot write 'no/such/folder.json'"]),
        (["plan", "3x3", "--draw", "no/such/folder.svg"], ["cannot draw to 'no/such/folder.svg'"]),
        (["plan", "3x3", "--draw", "plan.svg", "--flow", "999"], ["flow=999", "0 to"]),
        (["verify", "none.json"], ["cannot read 'none.json' (No such file or directory)"]),
        (["verify", "."], ["cannot read '.' (Is a directory)"]),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(run: Run, words: list[str], says: list[str]) -> None:
    refused(run(*words), *says)


def test_falling_apart_is_shown_and_largest_offered(run: Run) -> None:
    ran = run("plan", "4x4", "-4x1@0,1")
    assert ran.code == 2
    assert ran.out == ""
    first, *shown = ran.err.splitlines()
    assert "--largest" in first
    assert shown == ["b x a a"] * 4


def test_verify_of_other_files_says_what_they_are(run: Run) -> None:
    save(Mesh(4, 4), "mesh.json")
    refused(run("verify", "mesh.json"), "'mesh.json' holds the mesh 4x4, not a plan", "meshmend plan MESH --json")
    Path("text.json").write_text("hello")
    refused(run("verify", "text.json"), "'text.json': this is not JSON")
    Path("list.json").write_text("[1, 2]")
    refused(run("verify", "list.json"), "neither a plan nor a mesh")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["plan", "4x4", "--algoritm", "ring"], "--algorithm"),
        (["plan", "4x4", "--algorithm", "rign"], "ring"),
        (["plan", "4x4", "--jsn", "x"], "--json"),
        (["pln", "4x4"], "plan"),
        (["verfy", "x.json"], "verify"),
        (["verify", "x.json", "--chunk", "3"], "--chunks"),
    ],
)
def test_a_mistyped_word_is_answered_with_the_right_one(run: Run, words: list[str], meant: str) -> None:
    ran = run(*words)
    assert ran.code == 2
    assert ran.out == ""
    assert re.search(rf'Did you mean "?{meant}"?\?', ran.err)
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["plan"], "--mesh"),
        (["verify"], "--file"),
        (["plan", "4x4", "--seed", "one"], "--seed"),
        (["plan", "4x4", "--seed"], "--seed"),
        (["plan", "4x4", "5x5"], "5x5"),
        (["plan", "-2x2@0,0"], "-2x2@0,0"),
        (["4x4", "-2x2@0,0"], "4x4"),
    ],
)
def test_what_is_missing_or_too_much_is_named(run: Run, words: list[str], says: str) -> None:
    ran = run(*words)
    assert ran.code == 2
    assert says in ran.err
    assert "Traceback" not in ran.err


VERBS = [mesh.plan, mesh.verify, run_verb.run, audit.audit, chaos.chaos, doctor.doctor, demo.demo, testbed.testbed]


@pytest.mark.parametrize("function", VERBS, ids=lambda function: function.__name__)
def test_help_tells_every_option(run: Run, function: Callable[..., int]) -> None:
    ran = run(function.__name__, "--help")
    assert (ran.code, ran.err) == (0, "")
    assert inspect.getdoc(function).splitlines()[0] in ran.out  # type: ignore[union-attr]
    for name, parameter in inspect.signature(function).parameters.items():
        option = name.rstrip("_").replace("_", "-")
        told = re.search(rf"(--{option}|{option.upper()})\b.*? [A-Za-z]{{3,}}", ran.out, re.DOTALL)
        assert told, name
        if parameter.default not in (None, inspect.Parameter.empty, "", False):
            assert f"[default: {parameter.default}]" in re.sub(r"[│\s]+", " ", ran.out)


def test_help_lists_the_verbs(run: Run) -> None:
    for words in (["--help"], []):
        ran = run(*words)
        assert ran.code == 0
        assert "plan " in ran.out
        assert "verify " in ran.out
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*\n", run("--version").out)


def test_a_plan_and_its_proof_in_processes_of_their_own(tmp_path: Path) -> None:
    words = ["plan", "8x8", "-2x2@2,2", "--random", "chips=5%", "--seed", "3", "--largest", "--json", "p.json"]
    mesh = planned(start(*words, folder=tmp_path, PYTHONIOENCODING="utf-8"))
    assert mesh == str(Mesh.parse("8x8 -2x2@2,2").fail_random(3, chips=0.05).largest())
    ran = start("verify", "p.json", folder=tmp_path)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.count("correct: ") == 2


def test_a_terminal_without_arrows_still_gets_the_figures(tmp_path: Path) -> None:
    ran = start("plan", "4x4", folder=tmp_path, PYTHONIOENCODING="ascii")
    assert planned(ran) == "4x4"


def test_a_mistake_ends_a_process_with_2(tmp_path: Path) -> None:
    refused(start("plan", "4x4", "-chip@9,9", folder=tmp_path), "chip 9,9 is outside the 4x4 mesh")


def test_ctrl_c_is_no_trace(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_load", interrupted)
    done = run("plan", "4x4")
    assert done.code == 130 and done.out == done.err == ""


def test_simulate_compares_and_shows(run: Run, tmp_path: Path) -> None:
    done = run("simulate", "6x6", "-2x2@2,2", "--algorithm", "trees,ring", "--nbytes", "1MB", "--json", "f.json")
    assert done.code == 0 and "trees" in done.out and "ring" in done.out
    figures = json.loads((tmp_path / "f.json").read_text())
    trees, ring = figures["flights"]
    assert trees["mesh"] == "6x6 -2x2@2,2" and trees["seconds"] < ring["seconds"]
    assert 0 < trees["algbw"] < trees["bound"] and trees["mean"] <= trees["busiest"] <= 1
    done = run("simulate", "4x4", "--algorithm", "trees", "--nbytes", "1MB", "--trace", "t.json", "--draw", "h.svg")
    assert done.code == 0 and "wrote  t.json" in done.out and (tmp_path / "h.svg").exists()
    assert run("plan", "4x4", "--json", "p.json").code == 0
    done = run("simulate", "p.json", "--nbytes", "1MB", "--fail", "2x2@0,0", "--at", "2us")
    assert done.code == 0 and "never" in done.out and "12 chips are left" in done.out


def test_simulate_own_links(run: Run, tmp_path: Path) -> None:
    def seconds(*words: str) -> float:
        words = (
            "simulate",
            "4x4",
            "--algorithm",
            "trees",
            "--nbytes",
            "1MB",
            "--chunks",
            "64",
            "--json",
            "f.json",
            *words,
        )
        assert run(*words).code == 0
        return float(json.loads((tmp_path / "f.json").read_text())["flights"][0]["seconds"])

    plain = seconds()
    slower = [("--bandwidth", "40GB"), ("--latency", "2us"), ("--overhead", "1us"), ("--adds", "10GB")]
    assert all(seconds(*words) > plain for words in slower)
    assert seconds("--order", "first-come") != plain


def test_simulate_refuses(run: Run, tmp_path: Path) -> None:
    refused(run("simulate", "4x4", "--nbytes", "0"), "at least 1 byte")
    refused(run("simulate", "4x4", "--link", "string"), "network 'string'")
    refused(run("simulate", "4x4", "--latency=-1us"), "cannot read '-1us' as a time")
    refused(run("simulate", "4x4", "--overhead", "3 parsecs"), "cannot read '3 parsecs' as a time")
    refused(run("simulate", "4x4", "--fail", "chip@0,0"), "--fail and --at go together")
    refused(run("simulate", "4x4", "--algorithm", "ring,trees", "--draw", "h.png"), "name a single --algorithm")
    refused(run("simulate", "4x4", "--order", "best"), "choose from schedule, first-come")
    refused(run("simulate", "4x4", "--json", "no/f.json"), "there is no such folder")
    refused(run("simulate", "gone.json"), "gone.json")
    save(Mesh.parse("2x2"), "mesh.json")
    refused(run("simulate", "mesh.json"), "holds the mesh 2x2, not a plan")
    assert run("plan", "4x4", "--json", "p.json").code == 0
    text = (tmp_path / "p.json").read_text()
    old = json.loads(text)
    name = next(key for key in old if "format" in key)
    old[name] = 99
    (tmp_path / "p.json").write_text(json.dumps(old))
    refused(run("simulate", "p.json"), "99")


def commands_that_start_meshmend(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Those of the demo and of a testbed: all their words up to `meshmend`."""
    caught: dict[str, list[str]] = {}

    def end(command: list[str], *_: object) -> None:
        caught["demo"] = command
        raise KeyboardInterrupt

    monkeypatch.setattr(story, "find_spec", lambda _: True)
    monkeypatch.setattr(story, "_undisturbed", lambda *_: story.Outcome())
    monkeypatch.setattr(story, "_disturbed", end)
    assert story.demo() == 130
    bed: Any = SimpleNamespace(hosts=["localhost"], agent="ssh")
    caught["testbed"] = testbed._as_job(bed, ["meshmend", "run", "script.py"])

    def become(_: str, command: list[str]) -> None:
        caught["user namespace"] = command[command.index("sh", command.index(privileges.ENTER)) + 1 :]

    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 0))
    monkeypatch.setattr(os, "execvp", become)
    privileges.become_root()
    monkeypatch.undo()
    return {name: command[: command.index("meshmend") + 1] for name, command in caught.items()}


def test_modules_of_the_working_directory_are_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be a folder that others can write to."""
    commands = commands_that_start_meshmend(monkeypatch)
    for name in ("meshmend", "xxhash", "numpy", "cyclopts"):
        (tmp_path / f"{name}.py").write_text(f"open('{name} was run', 'w').close()\n")
    for name, command in commands.items():
        words = [*command, "run", "-n", "1", "no-such-script.py"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert [*tmp_path.glob("* was run")] == [], name
        assert done.returncode == 2 and "no-such-script.py" in done.stderr, (name, done)
