"""The page of a run in a real Chromium: live, killed from its button, finished, damaged, in light and in dark."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from meshmend.report.page import export
from tests.jobs.jobs import Job, wait_for
from tests.processes import DEADLINE
from tests.report.made import Attempt, run
from tests.report.test_weeks import written

pytestmark = pytest.mark.jobs

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
MILLISECONDS = 1000 * DEADLINE


@contextmanager
def browser() -> Iterator[Any]:
    """A browser; where the machine has none, the test says so."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here: apt-get install chromium, to test the page in a real browser")
    from playwright.sync_api import sync_playwright

    alone = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=CHROMIUM, args=[*FLAGS, *alone])
        yield started
        started.close()


def opened(browser: Any, url: str, *, scheme: str = "light", width: int = 1400) -> tuple[Any, list[str], list[str]]:
    """A page, what its console has said, and what it has asked for."""
    page = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 1000}).new_page()
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.set_default_timeout(MILLISECONDS)
    page.goto(url)
    return page, said, asked


def shows(locator: Any) -> Any:
    """What comes in the end; the page's policy lets no test run scripts that wait."""
    from playwright.sync_api import expect

    expect.set_options(timeout=MILLISECONDS)
    return expect(locator)


@contextmanager
def watching(job: Job, *words: str) -> Iterator[str]:
    """The address of `meshmend watch`."""
    command = [sys.executable, "-m", "meshmend", "watch", job.name, "--port", "0", *words]
    process = subprocess.Popen(command, cwd=job.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "http://" in line, line + process.stdout.read()
        yield line.split(" is at ")[1].strip()
    finally:
        process.terminate()
        rest, _ = process.communicate(timeout=60)
        assert "Traceback" not in rest and process.returncode in (0, -15), rest


def test_a_worker_is_killed_from_the_page_and_the_page_shows_what_follows(job: Job) -> None:
    job.start(
        "-n",
        "3",
        "--checkpoint-every",
        "20",
        script=(Path(__file__).with_name("regression.py"), "steps=60", "gate=20"),
    )
    wait_for(lambda: (job.path / "events" / "worker-0.jsonl").exists())
    with browser() as chrome, watching(job, "--allow-chaos") as url:
        page, said, asked = opened(chrome, url)
        shows(page.locator(".tile.active")).to_have_count(3)
        kill = page.locator('.tile[data-rank="1"] .kill')
        kill.click()
        page.locator('.tile[data-rank="1"] .kill.armed').click()
        shows(page.locator("#toast")).to_contain_text("killed worker 1")
        job.open_gate()
        shows(page.locator("#phase")).to_have_text("finished")
        job.finish()
        shows(page.locator(".verdict.clean")).to_have_count(1)
        shows(page.locator("#incidents")).to_contain_text("worker 1 SIGKILL")
        text = page.inner_text("body")
        assert "killed worker 1" in text and re.search(r"died (once|\d times) \(", text), "its replacement may be late"
        while page.locator(".incident > button[aria-expanded=false]").count():
            page.locator(".incident > button[aria-expanded=false]").first.click()
        assert page.locator(".fall .lane i").count() >= 3, "its waterfall"
        assert page.locator("#loss svg .line").get_attribute("d").count("L") > 40
        assert said == []
        assert all(one.startswith(url) for one in asked if not one.startswith("data:")), asked
    assert job.status == 0, job.output
    job.assert_clean()


def test_a_metric_that_the_run_does_not_have_is_a_sentence(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", run([Attempt(0, 20, 2)]))
    export(str(folder), str(tmp_path / "page.html"), metric="losss")
    with browser() as chrome:
        page, said, _ = opened(chrome, f"file://{tmp_path}/page.html")
        assert page.inner_text("#loss") == "no metric is called losss; this run has loss" and said == []


def test_without_allow_chaos_there_is_no_button(job: Job) -> None:
    job.run("-n", "2")
    with browser() as chrome, watching(job) as url:
        page, said, _ = opened(chrome, url)
        shows(page.locator(".tile.finished")).to_have_count(2)
        assert page.locator(".kill").count() == 0 and said == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 400])
def test_a_saved_page_needs_nothing_and_fits(tmp_path: Path, scheme: str, width: int) -> None:
    attempts = [Attempt(0, 200, 4, {60: 2}, {90: 2}), Attempt(180, 300, 4, {200: 1})]
    folder = written(tmp_path / "run", run(attempts))
    lines = (folder / "events" / "worker-1.jsonl").read_bytes().split(b"\n")
    lines[5] = b"<b>damaged</b>"
    (folder / "events" / "worker-1.jsonl").write_bytes(b"\n".join(lines))
    export(str(folder), str(tmp_path / "page.html"))
    with browser() as chrome:
        page, said, asked = opened(chrome, f"file://{tmp_path}/page.html", scheme=scheme, width=width)
        assert said == [] and [one for one in asked if not one.startswith("data:")] == [f"file://{tmp_path}/page.html"]
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.locator(".incident > button").nth(1).click()
        assert page.locator(".incident > button[aria-expanded=true]").count() == 2
        text = page.inner_text("body")
        assert "<b>damaged</b>" in text and "20 steps (160 samples) done again from a checkpoint" in text
        dark = "rgb(16, 20, 26)"
        assert (page.evaluate("getComputedStyle(document.body).backgroundColor") == dark) == (scheme == "dark")
        page.locator("#loss svg").hover()
        assert page.inner_text("#tip").startswith("step ")
