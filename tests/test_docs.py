"""Every command and example in README and docs runs."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshmend import errors
from meshmend.cli import main
from meshmend.errors import MeshmendError
from meshmend.run import console, news
from meshmend.run.supervisor.messages import Signalled
from meshmend.testbed import why_not
from tests.run import test_console

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [(page, language, text) for page in PAGES for language, text in BLOCK.findall(page.read_text())]


COMMANDS = [line for _, _, text in BLOCKS for line in text.splitlines() if line.startswith("meshmend ")]
OF_RUNS = ("run", "audit", "chaos", "doctor", "demo", "testbed", "watch", "report")
JOBS = [line for line in COMMANDS if line.split()[1] in OF_RUNS]
EXAMPLES = [(page, text) for page, language, text in BLOCKS if language == "python"]
TORCH = [(page, text) for page, text in EXAMPLES if "import torch" in text]


def test_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    commands = [line for line in COMMANDS if line not in JOBS]
    assert len(commands) >= 4
    for command in commands:
        assert main(shlex.split(command, comments=True)[1:]) == 0, command
    assert "1.889 B" in capsys.readouterr().out


@pytest.mark.jobs
def test_commands_of_jobs_run(tmp_path: Path) -> None:
    """In their order, in one folder; chaos beside a run that lasts long enough, and the demo by its own test."""
    script = (ROOT / "tests" / "jobs" / "regression.py").read_text()
    (tmp_path / "package").mkdir()
    for path in (tmp_path / "train.py", tmp_path / "package" / "train.py"):
        path.write_text(script.replace("sys.argv[1:]", "[]"))
    done: set[str] = set()
    for command in JOBS:
        words = [sys.executable, "-m", "meshmend", *shlex.split(command, comments=True)[1:]]
        if command in done or "demo" in words:
            continue
        done.add(command)
        if "other" in words:
            line = [sys.executable, "-m", "meshmend", "run", "--name", "other", "train.py"]
            subprocess.run(line, cwd=tmp_path, check=True, timeout=60)
        if "chaos" in words or ("--hosts" in words and "--print" not in words):
            continue  # test_chaos.py and test_hosts.py have runs for it
        if "watch" in words and "--export" not in words:
            continue  # it serves until it is interrupted; test_watch.py
        if "testbed" in words and why_not():
            continue
        ran = subprocess.run(words, cwd=tmp_path, timeout=100, capture_output=True, text=True)
        assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"


def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text((ROOT / "tests" / "jobs" / "regression.py").read_text())
    assert EXAMPLES
    for page, text in EXAMPLES:
        if (page, text) not in TORCH:
            exec(compile(text.replace("30_000", "50"), str(page), "exec"), {})  # a quick start lasts a minute
    assert "1.889 B of at most 1.897 B (99.6 %)" in capsys.readouterr().out
    assert (tmp_path / "plan.svg").exists()


def test_examples_of_pytorch_run() -> None:
    import torch

    assert len(TORCH) >= 5
    before = torch.get_num_threads()
    for page, text in TORCH:
        exec(compile(text, str(page), "exec"), {})
    torch.set_num_threads(before)


def test_make_targets_and_links_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        text = page.read_text()
        for target in re.findall(r"(?:^|`)make (\w+)", text, re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name}: make {target}"
        for link in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


FOLDERS = ("src", "tests", "docs", "benchmarks", "examples")
FILES = {path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
EXAMPLES_OF_USERS = {"script.py", "program.py", "train.py", "xxhash.py", "meshmend.py"}
"""Files that a user, or an attacker, may have."""


def test_every_file_that_a_page_names_exists() -> None:
    tails = {"/".join(parts[i:]) for parts in (name.split("/") for name in FILES) for i in range(len(parts))}
    for page in PAGES:
        for name in re.findall(r"(?<![\w/])[\w/]+\.py\b", page.read_text()):
            made_up = "NAME" in name or name in EXAMPLES_OF_USERS
            assert made_up or name.removeprefix("/") in tails, f"{page.name}: {name}"


def test_every_test_that_a_page_names_exists() -> None:
    tests = [*(ROOT / "tests").rglob("*.py")]
    made = {name for path in tests for name in (path.stem, *re.findall(r"def (test_\w+)", path.read_text()))}
    for page in PAGES:
        for name in re.findall(r"[`:](test_\w+)[`\[]", page.read_text()):
            assert name in made or "NAME" in name, f"{page.name}: {name}"


PUBLIC_WORDS = (
    "worker", "lane", "step", "commit", "job", "run", "attempt", "spare", "courier", "world", "agent", "launcher",
    "warm process", "halt", "attach", "door", "secret", "heartbeat", "orphan", "slice", "stage", "measure", "ledger",
    "ledger line", "void line", "stray line", "audit", "goodput", "incident", "victim", "fault", "chaos", "input stall",
    "chip", "hole", "board", "flow", "plan", "proof", "schedule", "testbed",
)  # fmt: skip
"""Words that --help, messages and pages use in a sense of their own."""


def glossary_words() -> set[str]:
    """The words that have rows, in lower case."""
    glossary = (ROOT / "docs" / "glossary.md").read_text().lower()
    rows = [line.split(" | ")[0] for line in glossary.splitlines() if line.startswith("| **")]
    return {word for row in rows for words in re.findall(r"\*\*(.+?)\*\*", row) for word in words.split(", ")}


def test_every_public_word_has_a_row_in_the_glossary() -> None:
    assert [word for word in PUBLIC_WORDS if word not in glossary_words()] == []


def test_the_contents_of_troubleshooting_name_every_section() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    sections = re.findall(r"^## (.+)$", page, re.MULTILINE)
    (contents,) = re.findall(r"^Contents: (.*?)\n\n", page, re.MULTILINE | re.DOTALL)
    listed = re.findall(r"\[([^]]+)\]\(#([^)]+)\)", contents)
    assert [name.lower() for name, _ in listed] == [name.lower() for name in sections]
    for name, link in listed:
        assert link == re.sub(r"[^\w -]", "", name.lower()).replace(" ", "-")


def test_the_map_names_every_folder_and_every_word_is_in_the_glossary() -> None:
    page = (ROOT / "docs" / "how-it-works.md").read_text()
    (drawn,) = re.findall(r"## The map\n.*?```text\n(.*?)```", page, re.DOTALL)
    source = ROOT / "src" / "meshmend"
    folders = {path.parent.name for depth in ("*", "*/*") for path in source.glob(f"{depth}/__init__.py")}
    assert len(folders) > 40 and folders <= {*re.findall(r"(\w+)/", drawn)}
    known = glossary_words()
    for word in re.findall(r"(?<![*\w])\*([a-z]+)\*(?!\*)", page.replace("*italics*", "")):
        assert {word, word.removesuffix("s"), re.sub("ies$", "y", word)} & known, f"{word} is not in the glossary"


def test_a_word_with_two_meanings_says_in_the_glossary_which_one_a_row_has() -> None:
    """As in `**record** (protocol)` and `**record** (shared memory)`."""
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    heads = re.findall(r"^\| (\*\*.+?) \|", glossary, re.MULTILINE)
    words = [match for head in heads for match in re.findall(r"\*\*(.+?)\*\*( \([^)]+\))?", head)]
    assert len(words) > 100 and len(set(words)) == len(words)
    names = [word for word, _ in words]
    assert [word for word, which in words if names.count(word) > 1 and not which] == []


def test_the_reference_is_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "docs")
    made = importlib.import_module("api_page")
    page = (ROOT / "docs" / "api.md").read_text()
    assert page == made.page(), "docs/api.md is not what the docstrings say: make pictures"
    assert all(f"`mm.{name}" in page for name in made.public_names())


ERRORS = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, MeshmendError)}
INTERNAL = {
    ("base/cuda.py", "failed: "): "the row quotes a call and an error of the driver: `cu… failed: CUDA_ERROR_…`",
    ("job/device/stand_in.py", "bytes were given"): "a device of the tests",
    ("job/device/stand_in.py", "were asked for"): "a device of the tests",
    (
        "job/reduction/exact.py",
        "a grid of shape",
    ): "states of other leaves are refused before",
    ("job/shm/buffers.py", "are those of another worker"): "the courier repairs its group instead",
    ("job/shm/slices.py", "are those of another worker"): "the courier repairs its group instead",
    ("job/slices/holder.py", "were given for leaves of"): "job.share checks the weights before",
    ("job/slices/holder.py", "must be copied from a holder"): "an assertion of the plan of copies",
    ("job/slices/holder.py", "none can be updated in round"): "an assertion of the protocol",
    ("job/warm.py", "an invalid order"): "the agent writes the orders, and starts a cold worker instead",
    ("run/agent/messages.py", "a line has more than"): "shown as `the agent on … sent an invalid message (…)`",
}
"""(file, part of the message): why no user meets this error in these words."""
ENDS = {"end", "_end"}
"""Methods that end a worker with a sentence."""


def raised() -> Iterator[tuple[str, str]]:
    """(file, message) of each error of ours that the source raises with a text; … stands for values."""
    source = ROOT / "src" / "meshmend"
    for path in sorted(source.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                function = node.exc.func
                if (function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")) in ERRORS:
                    text = " ".join(text_of(node.exc.args[0]).split())
                    if len(text.replace("…", "").strip()) > 5:
                        yield str(path.relative_to(source)), text
            elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ENDS and node.args:
                text = " ".join(text_of(node.args[0]).split())
                if len(text.replace("…", "").strip()) > 5:
                    yield str(path.relative_to(source)), text


def text_of(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(one.value if isinstance(one, ast.Constant) else "…" for one in values)  # type: ignore[misc]
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return text_of(left) + text_of(right)
        case ast.IfExp(body=body):
            return text_of(body)
    return "…"


def holds(text: str, quote: list[str]) -> bool:
    """Whether a message has these parts, in this order."""
    place = 0
    for part in quote:
        found = text.find(part, place)
        if found < 0:
            return False
        place = found + len(part)
    return True


def quotes_of_troubleshooting() -> list[list[str]]:
    """The messages in the first column of its tables, each as the parts between its values."""
    rows = [line for line in (ROOT / "docs" / "troubleshooting.md").read_text().splitlines() if line.startswith("|")]
    quoted = [re.findall(r"`([^`]+)`", row.split(" | ")[0]) for row in rows]
    parts = [[part.strip().lower() for part in quote.split("…")] for row in quoted for quote in row]
    return [some for some in ([part for part in one if len(part) > 2] for one in parts) if sum(map(len, some)) > 5]


def test_every_error_has_a_row_in_troubleshooting() -> None:
    quotes = quotes_of_troubleshooting()
    messages = [*raised()]
    assert len(messages) > 500
    internal = {known for known in INTERNAL for file, text in messages if file == known[0] and known[1] in text}
    assert internal == INTERNAL.keys(), "INTERNAL has errors that are gone"
    for file, text in messages:
        if not any(file == known[0] and known[1] in text for known in INTERNAL):
            shown = any(holds(text.lower(), quote) for quote in quotes)
            assert shown, f"{file}: {text!r} has no row in docs/troubleshooting.md"


def test_every_message_of_the_launcher_has_a_row_in_troubleshooting() -> None:
    quotes, passed_on = quotes_of_troubleshooting(), (news.CourierSaid, news.ActionFailed)
    said = [console.sentence(message) for message, _ in test_console.MESSAGES]
    said += [console.announcement(message) for message, _ in test_console.NEWS if not isinstance(message, passed_on)]
    said += [console.halt_reason(reason) for reason, _ in test_console.HALTS if not isinstance(reason, Signalled)]
    said += [f"world 2 ({console.world_reason(reason)})" for reason, _ in test_console.WORLDS]
    assert len(said) > 70
    for text in said:
        assert any(holds(text.lower(), quote) for quote in quotes), f"{text!r} has no row in docs/troubleshooting.md"
