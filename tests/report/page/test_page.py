"""The page: what it is made of, who may read it, and that it never touches the run."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshmend.cli import main
from meshmend.errors import JobError, PictureError
from meshmend.report.history import Reading, read_history
from meshmend.report.page import export
from meshmend.report.page.live import Live
from meshmend.report.page.server import check_token, is_loopback, listen
from meshmend.report.page.snapshot import Snapshots, to_json
from meshmend.telemetry import Committed, Ended, Epoch, Event, Log
from tests.report.made import Attempt, run
from tests.report.page.serving import served
from tests.report.test_weeks import written

KILLED = [Attempt(0, 40, 4, {20: 2}, {30: 2})]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = written(tmp_path / "runs" / "mine", run(KILLED))
    values = {"format": 3, "version": "0.1.0", "run": "mine", "script": ["train.py", "--x"], "workers": 4, "spares": 0}
    (made / "run.json").write_text(json.dumps({**values, "on_failure": "replace", "hosts": [], "mesh": "2x2"}))
    return made


def sections(folder: Path) -> dict[str, Any]:
    found = Snapshots(read_history(str(folder))).sections()
    return {name: json.loads(to_json(section)) for name, section in found.items()}


def test_sections_say_what_the_audit_says(folder: Path) -> None:
    found = sections(folder)
    assert found["run"]["phase"] == "running" and found["run"]["script"] == "train.py --x"
    job = found["job-1"]
    assert job["account"]["clean"] is True and job["account"]["steps"] == job["step"] == 40
    assert job["curve"]["steps"] == list(range(40)) and len(job["paces"]["steps"]) == 39
    assert [one["what"] for one in job["incidents"]] == [["worker 2 SIGKILL"], ["worker 2 joins"]]
    assert job["incidents"][0]["lost"] == {"2": 1} and job["incidents"][0]["phases"][0][0] == "detect"
    assert [worker["state"] for worker in found["workers"]] == ["active"] * 4
    assert sum(worker["lanes"] for worker in found["workers"]) == 4
    assert job["active"] == [[0, 4], [20, 3], [30, 4]]


def test_dead_workers_are_holes_of_the_mesh(folder: Path, tmp_path: Path) -> None:
    whole = sections(folder)["mesh"]
    assert [chip["dead"] for chip in whole["chips"]] == [False] * 4 and len(whole["links"]) == 4
    events = run([Attempt(0, 40, 4, {20: 2})])
    other = written(tmp_path / "other", events)
    (other / "run.json").write_text((folder / "run.json").read_text())
    mesh = sections(other)["mesh"]
    assert [chip["dead"] for chip in mesh["chips"]] == [False, False, True, False] and len(mesh["links"]) == 2
    assert max(max(link[2:]) for link in mesh["links"]) == 1.0 and mesh["algbw"] <= mesh["bound"]


def test_phases_follow_the_status(folder: Path) -> None:
    log = Log(folder, "launcher")
    for status, phase in ((0, "finished"), (75, "stopped"), (1, "failed")):
        log.write(Ended(time=2e3 + status, epoch=Epoch(0, 2), status=status))
        assert sections(folder)["run"]["phase"] == phase
    log.close()


def test_numbers_that_json_lacks_and_text_that_ends_scripts_are_no_harm(tmp_path: Path) -> None:
    odd = "</script><img src=x onerror=alert(1)>"
    made = [
        replace(e, metrics={odd: float("nan"), "loss": 2.0}) if isinstance(e, Committed) else e for e in run(KILLED)
    ]
    folder = written(tmp_path / "run", made)
    for path in (folder / "events").glob("worker-*"):
        path.write_text(path.read_text().replace("NaN", "1e999"))
    page = tmp_path / "page.html"
    assert export(str(folder), str(page)) == page.stat().st_size
    text = page.read_text()
    assert text.count("</script>") == 3 and "<img" not in text
    state = json.loads(re.search(r'id="state">(.*?)</script>', text, re.DOTALL)[1])  # type: ignore[index]
    assert odd in state["job-1"]["metrics"] and state["job-1"]["metrics"][odd] is None


def test_an_exported_page_refers_to_nothing_outside(folder: Path, tmp_path: Path) -> None:
    export(str(folder), str(tmp_path / "page.html"))
    text = (tmp_path / "page.html").read_text()
    links = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"'`]*", text))
    assert links <= {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=(?!\"data:,\")", text)
    assert "default-src 'none'" in text and "'live'" not in text and '"live": false' in text


def test_a_page_that_cannot_be_written_is_a_sentence(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(PictureError, match=r"cannot write .* give a path in a folder that exists"):
        export(str(folder), str(tmp_path / "none" / "page.html"))


def test_reading_changes_nothing_in_the_folder(folder: Path) -> None:
    def seen() -> dict[str, tuple[int, int, bytes]]:
        return {
            str(path): (path.stat().st_mtime_ns, path.stat().st_size, path.read_bytes())
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }

    before = seen()
    with served(str(folder)) as page:
        assert page.ask("/state.json")[0] == page.ask("/metrics")[0] == 200
    assert seen() == before


def test_the_stream_sends_what_changes_and_no_more(folder: Path) -> None:
    with served(str(folder)) as page:
        events = page.events()
        first = next(events)
        assert {"run", "workers", "job-1", "mesh", "notes"} == first.keys()
        line = Committed(
            time=1010.0, epoch=Epoch(0, 2), rank=0, step=40, by=[[0, 1], [1, 1], [2, 1], [3, 1]], digest="0" * 12,
            metrics={"loss": 0.125},
        )  # fmt: skip
        log = Log(folder, "worker-0")
        log.write(line)
        log.close()
        second = next(events)
        assert second["job-1"]["metrics"] == {"loss": 0.125} and second["job-1"]["step"] == 41
        assert "mesh" not in second and "notes" not in second
        events.close()


def test_a_section_is_sent_once_to_each_reader(folder: Path) -> None:
    live = Live(Reading(str(folder)))
    live.refresh()
    one: dict[str, int] = {}
    other: dict[str, int] = {}
    assert live.changes(one) == live.changes(other) != ""
    assert live.changes(one) == live.changes(other) == ""


def test_who_may_read(folder: Path) -> None:
    token = "correct horse battery"
    with served(str(folder), token) as page:
        for path in ("/", "/stream", "/state.json", "/metrics"):
            assert page.ask(path)[0] == 401, path
        assert page.ask("/state.json?token=wrong")[0] == page.ask("/state.json", Authorization="Bearer x")[0] == 401
        assert page.ask("/metrics", Authorization=f"Bearer {token}")[0] == 200
        status, _, headers = page.ask(f"/?token={token.replace(' ', '%20')}")
        cookie = headers["set-cookie"]
        assert status == 200 and "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
        assert page.ask("/state.json", Cookie=cookie.split(";")[0])[0] == 200
    with served(str(folder)) as page:
        assert page.ask("/state.json", Host="evil.example:80")[0] == 403  # DNS rebinding
        assert page.ask("/state.json", Host=f"localhost:{page.port}")[0] == 200


def test_who_may_kill(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[int] = []
    monkeypatch.setattr("meshmend.report.page.app.kill", lambda *words: killed.append(words[2]) or "done")
    with served(str(folder)) as page:
        assert page.ask("/kill", "POST", '{"rank": 1}', X_Meshmend_Key=page.page.key)[0] == 403
        assert page.page.key not in page.ask("/")[1]
    with served(str(folder), allow_chaos=True) as page:
        key = page.page.key
        assert key in page.ask("/")[1]
        assert (
            page.ask("/kill", "POST", '{"rank": 1}')[0] == page.ask("/kill", "POST", "{}", X_Meshmend_Key="x")[0] == 403
        )
        for bad in ("", "[]", "{}", '{"rank": "1"}', '{"rank": true}'):
            assert page.ask("/kill", "POST", bad, X_Meshmend_Key=key)[0] == 400, bad
        assert page.ask("/kill", X_Meshmend_Key=key)[0] == 405
        assert killed == []
        assert page.ask("/kill", "POST", '{"rank": 1}', X_Meshmend_Key=key)[0] == 200 and killed == [1]


def test_a_worker_that_is_not_here_cannot_be_killed(folder: Path) -> None:
    with served(str(folder), allow_chaos=True) as page:
        status, text, _ = page.ask("/kill", "POST", '{"rank": 1}', X_Meshmend_Key=page.page.key)
        assert status == 409 and "worker 1 is not training on this host" in text
    assert not (folder / "events" / "page.jsonl").exists()


def test_the_page_of_a_large_run_stays_small(tmp_path: Path) -> None:
    made: list[Event] = run([Attempt(0, 6000, 3, {step: step % 3 for step in range(50, 5000, 100)},
                                     {step: (step - 50) % 3 for step in range(100, 5000, 100)})])  # fmt: skip
    page = tmp_path / "page.html"
    export(str(written(tmp_path / "run", made)), str(page))
    assert page.stat().st_size < 250_000


def test_a_port_in_use_is_a_sentence() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        with pytest.raises(JobError, match=rf"cannot listen on 127.0.0.1, port {port} \(.*in use.*\): give another"):
            listen("127.0.0.1", port)
    with pytest.raises(JobError, match="--port 70000: expected 1 to 65535"):
        listen("127.0.0.1", 70000)
    with pytest.raises(JobError, match=r"cannot listen on no.such.host.invalid"):
        listen("no.such.host.invalid", 0)


def test_tokens() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.1", "node")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip
    assert check_token("127.0.0.1", "") == ""
    assert len(check_token("0.0.0.0", "")) >= 32 and check_token("0.0.0.0", "") != check_token("0.0.0.0", "")
    assert check_token("127.0.0.1", "x" * 16) == "x" * 16
    with pytest.raises(JobError, match="--token has 3 characters: give 16 or more"):
        check_token("0.0.0.0", "abc")


@pytest.mark.usefixtures("folder")
def test_the_command_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["watch", "other"]) == 2
    assert capsys.readouterr().err.startswith("meshmend: there is no run in 'runs/other': expected a folder")
    assert main(["watch", "mine", "--export", "page.html"]) == 0
    assert re.fullmatch(r"page.html: [\d.]+ kB\n", capsys.readouterr().out)


def test_without_its_extra_the_page_says_which_and_a_file_still_works(folder: Path, tmp_path: Path) -> None:
    code = f"""
import sys
for name in ("starlette", "uvicorn", "prometheus_client"): sys.modules[name] = None
from meshmend.cli import main
assert main(["watch", {str(folder)!r}, "--export", {str(tmp_path / "page.html")!r}]) == 0
sys.exit(main(["watch", {str(folder)!r}]))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env={**os.environ})
    assert ran.returncode == 2 and (tmp_path / "page.html").exists()
    assert "meshmend watch needs uvicorn, which is not installed; run pip install 'meshmend[watch]'" in ran.stderr
    assert "Traceback" not in ran.stderr
