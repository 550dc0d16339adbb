"""The report of a run: what it must say, in Markdown and in HTML."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from meshmend.cli import main
from meshmend.report.document import story
from meshmend.report.document.blocks import Table, plain
from meshmend.report.document.write import as_html, as_markdown
from meshmend.report.history import read_history
from meshmend.telemetry import Ended, Epoch, Event, Saved, Started
from tests.report.made import Attempt, run
from tests.report.test_weeks import written

KILLED = [Attempt(0, 40, 4, {20: 2}, {30: 2}), Attempt(35, 60, 4)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    more: list[Event] = [
        Saved(time=1004.0, epoch=Epoch(0, 1), step=35, path="step-35.safetensors", seconds=0.25, nbytes=2_000_000),
        Ended(time=1100.0, epoch=Epoch(1, 1), status=0),
    ]
    return written(tmp_path / "runs" / "mine", [*run(KILLED), *more])


def test_it_tells_cause_course_cost_and_proof(folder: Path) -> None:
    text = as_markdown(story(read_history(str(folder))))
    for words in (
        "# Run mine", "ended with status 0", "Clean. 60 steps", "Goodput:", "5 steps done again after a checkpoint",
        "| 1 | worker 2 SIGKILL | shrink | 20 |", "1 lane of worker 2 (2 samples) went to worker",
        "Steps 35 to 39 were done again from a checkpoint: 5 steps, 40 samples.",
        "injected on purpose: worker 2 (kill)", "noticed: worker 2 SIGKILL", "the next step was committed",
        "the run was resumed as attempt 1", "1 checkpoint, written in the background in 250 ms",
    ):  # fmt: skip
        assert words in text, words
    assert re.search(r"^\| detect \| [\d.]+ ms \|$", text, re.MULTILINE)
    assert len(re.search(r"[▁▂▃▄▅▆▇█]+", text)[0]) == 60  # type: ignore[index]


def test_times_of_a_timeline_never_fall(folder: Path) -> None:
    units = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}
    for part in as_markdown(story(read_history(str(folder)))).split("### ")[1:]:
        found = re.findall(r"^\* \+([\d.]+) (µs|ms|s|min):", part, re.MULTILINE)
        times = [float(number) * units[unit] for number, unit in found]
        assert times and times == sorted(times)


class Outline(HTMLParser):
    """Checks that what is opened is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert not any(name.startswith("on") or name in ("src", "href") for name, _ in attrs)
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_is_whole_and_text_of_the_run_is_only_text(folder: Path) -> None:
    odd = Started(time=1000.0, epoch=Epoch(0), rank=2, process=9, host="<script>alert(1)</script>")
    history = read_history(str(written(folder, [odd])))
    history.damaged.append("<img src=x onerror=alert(1)>")
    text = as_html(story(history), "<b>")
    outline = Outline()
    outline.feed(text)
    assert outline.open == [] and not {"script", "img"} & set(outline.seen)
    assert "&lt;img src=x" in text and "<title>&lt;b&gt;</title>" in text


def test_markdown_shows_text_as_it_is() -> None:
    assert plain("a|b*c_d<e>`f`") == r"a\|b\*c\_d\<e\>\`f\`"
    table = Table(("a", "b"), [("x|y", "1\n2")]).markdown()
    assert table.split("\n") == ["| a | b |", "| --- | ---: |", r"| x\|y | 1 2 |"]


def test_files(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert folder.exists()
    assert main(["report", "mine"]) == 0 and capsys.readouterr().out.startswith("# Run mine\n")
    assert main(["report", "mine", "--out", "report.md"]) == main(["report", "mine", "--out", "report.html"]) == 0
    assert "![loss over the steps, with the incidents](report.svg)" in (tmp_path / "report.md").read_text()
    assert (
        (tmp_path / "report.svg").read_text().count("<svg") == (tmp_path / "report.html").read_text().count("<svg") == 1
    )
    words = ["--trace", "t.json", "--steps", "10:20", "--logs", "l.jsonl", "--tensorboard", "board"]
    assert main(["report", "mine", *words]) == 0
    out = capsys.readouterr().out
    assert "for ui.perfetto.dev" in out and "log records" in out and "scalars" in out and "# Run" not in out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["other"], "there is no run in 'runs/other'"),
        (["mine", "--out", "report.pdf"], "give a path that ends in .md or .html"),
        (["mine", "--out", "none/report.md"], "cannot write 'none/report.md'"),
        (["mine", "--trace", "none/t.json"], "cannot write 'none/t.json'"),
        (["mine", "--steps", "9", "--trace", "t.json"], "--steps 9: expected two numbers, such as 1000:2000"),
        (["mine", "--job", "7"], "run 'mine' has no job 7: choose from 1"),
    ],
)
def test_mistakes_are_one_sentence(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    words: list[str], why: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert folder.exists() and main(["report", *words]) == 2
    err = capsys.readouterr().err
    assert why in err and err.count("\n") == 1


def test_a_run_that_has_only_begun_has_a_report(tmp_path: Path) -> None:
    text = as_markdown(story(read_history(str(written(tmp_path / "run", run(KILLED)[:1])))))
    assert "has not ended" in text and "No worker has opened a job yet" in text


def test_findings_and_damage_are_in_it(folder: Path) -> None:
    path = folder / "events" / "worker-0.jsonl"
    lines = path.read_text().splitlines()
    lines[5] = "garbage"
    path.write_text("\n".join(lines) + "\n")
    events = [replace(event, by=[[0, 1], [1, 1], [2, 1]]) if getattr(event, "step", -1) == 7 and hasattr(event, "by")
              else event for event in run(KILLED)]  # fmt: skip
    assert "line 6 is not an event" in as_markdown(story(read_history(str(folder))))
    other = written(folder.parent / "other", events)
    text = as_markdown(story(read_history(str(other))))
    assert "NOT clean" in text and "step 7: lane 3 was not counted by any worker" in text


def test_without_matplotlib_the_report_says_what_to_install(folder: Path, tmp_path: Path) -> None:
    code = f"""
import sys
sys.modules["matplotlib"] = sys.modules["tensorboard"] = None
from meshmend.cli import main
assert main(["report", {str(folder)!r}, "--out", {str(tmp_path / "report.md")!r}]) == 0
sys.exit(main(["report", {str(folder)!r}, "--tensorboard", {str(tmp_path)!r}]))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 2 and "run pip install 'meshmend[tensorboard]'" in ran.stderr
    assert "pip install 'meshmend\\[report\\]'" in (tmp_path / "report.md").read_text()
