"""`meshmend run --hosts`: hosts are network namespaces of this machine, and are really lost and cut off."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial

import pytest

from meshmend.base.processes import is_alive
from meshmend.base.status import HALTED
from meshmend.job.shm import ranks_of
from meshmend.job.shm.files import RankFiles
from meshmend.job.shm.inspect import Member, member, members
from meshmend.run.console import sentence, world_reason
from meshmend.run.supervisor.messages import (
    AgentReplaced,
    CouriersStopped,
    Halting,
    HostBack,
    HostGone,
    HostLost,
    Joined,
    Minority,
    MpirunLost,
)
from meshmend.telemetry import Began, Committed, Opened, Saved, Started, read
from tests.jobs import distant, stranger
from tests.jobs.facts import hosts_lost
from tests.jobs.jobs import SCRIPT, Job, processes, wait_for
from tests.jobs.namespaces import AGENT, Hosts

pytestmark = pytest.mark.jobs
Undisturbed = Callable[..., str]
STEPS = "steps=300"
LONG = ["steps=150", "pause=0.02"]


@pytest.fixture
def job(job: Job, hosts: Hosts) -> Job:
    job.on = partial(hosts.line, "a")
    return job


def start(job: Job, hosts: str, *words: str, options: list[str] = LONG) -> Job:
    return job.start("--hosts", hosts, "--launch-agent", AGENT, *words, script=[SCRIPT, *options])


def workers(job: Job) -> list[int]:
    return [one.worker for one in members(job.name)]


def rank(job: Job, number: int) -> Member:
    found = member(job.name, number)
    assert found is not None
    return found


def started(job: Job) -> list[int]:
    return [event.rank for event in read(job.path) if isinstance(event, Started)]


def opened(job: Job, rank: int) -> int:
    return sum(isinstance(event, Opened) and event.rank == rank for event in read(job.path))


def committed(job: Job, rank: int) -> list[int]:
    return [event.step for event in read(job.path) if isinstance(event, Committed) and event.rank == rank]


def test_two_hosts_train_as_one(job: Job, hosts: Hosts, undisturbed: Undisturbed) -> None:
    start(job, "a:2,b:2", options=[]).finish()
    assert job.status == 0, job.output
    assert job.weights == [undisturbed()] * 4, job.output
    job.assert_clean()
    assert list(hosts.temporary.iterdir()) == []


def ports(hosts: Hosts, host: str) -> list[str]:
    """Where something of a run listens on a host for more than the host itself."""
    found = hosts.run(host, "ss", "-Hltn").splitlines()
    places = {line.split()[3].rpartition(":")[::2] for line in found}
    return [port for address, port in sorted(places) if not address.startswith("127.") and port != str(distant.PORT)]


def test_strangers_meet_a_run_in_its_own_network_alone_and_disturb_nothing(
    job: Job, hosts: Hosts, undisturbed: Undisturbed
) -> None:
    """Each host has an address in another network too, where nobody of the run is."""
    hosts.join_another_network()
    start(job, "a:2,b:2", options=[STEPS, "gate=20"]).until("step 15 ")
    found = {name: ports(hosts, name) for name in hosts.names}
    assert all(len(some) >= 4 for some in found.values())  # mpirun's or its daemon's, couriers'; an agent's
    ours = [f"{hosts.address(name)}:{port}" for name, some in found.items() for port in some]
    other = [f"{hosts.address(name, 1)}:{port}" for name, some in found.items() for port in some]
    # those of a new process are narrowed within a moment
    wait_for(lambda: hosts.run("hub", sys.executable, stranger.__file__, *other).split() == [])
    with hosts.popen("hub", sys.executable, stranger.__file__, *ours) as there:
        assert there.stdin is not None and there.stdout is not None
        assert len(there.stdout.readline().split()) > len(ours) / 2  # of those, some are of IPv6 alone
        os.kill(rank(job, 3).worker, signal.SIGKILL)
        job.open_gate()
        job.finish()
        there.stdin.close()
    assert job.status == 0, job.output
    assert set(job.weights) == {undisturbed(STEPS)}, job.output
    assert "Traceback" not in job.output and hosts_lost(job) == []
    job.assert_clean()


@pytest.mark.parametrize("ranks", [[3], [2, 3], [0], [1, 2]])
def test_workers_are_killed_on_any_host(job: Job, ranks: list[int], undisturbed: Undisturbed) -> None:
    start(job, "a:2,b:2", "--on-failure", "shrink").until("step 30 ")
    victims = workers(job)
    for rank in ranks:
        os.kill(victims[rank], signal.SIGKILL)
    job.finish()
    assert job.status == 0, job.output
    assert job.weights == [undisturbed(LONG[0])] * (4 - len(ranks)), job.output
    job.assert_clean()


def test_a_worker_on_another_host_is_replaced(job: Job, undisturbed: Undisturbed) -> None:
    options = ["pause=0.1", "steps=100"]
    start(job, "a:2,b:2", options=options).until("step 10 ")
    os.kill(workers(job)[3], signal.SIGKILL)
    job.finish()
    assert job.status == 0, job.output
    assert job.weights == [undisturbed(options[1])] * 4, job.output
    assert started(job) == [0, 1, 2, 3, 3]
    job.assert_clean()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("what", ["agent", "prted"])
def test_an_agent_or_a_daemon_dies_or_is_stopped_and_no_worker_restarts(
    job: Job, hosts: Hosts, what: str, how: signal.Signals, undisturbed: Undisturbed
) -> None:
    start(job, "a:2,b:2", options=[LONG[0], "gate=60"]).until("step 30 ")
    before = workers(job)
    victim = rank(job, 3).agent if what == "agent" else rank(job, 3).daemon
    assert victim in hosts.processes("b")
    os.kill(victim, how)
    why = MpirunLost() if how == signal.SIGKILL else CouriersStopped()
    job.until(sentence(AgentReplaced("b")) if what == "agent" else f"world 2 ({world_reason(why)})")
    assert workers(job) == before
    job.open_gate()
    job.finish()
    assert job.status == 0, job.output
    assert job.weights == [undisturbed(LONG[0])] * 4, job.output
    assert started(job) == [0, 1, 2, 3]
    wait_for(lambda: victim not in hosts.processes("b"))  # whoever took over has ended it
    job.assert_clean()


@pytest.mark.parametrize("halted", [False, True])
def test_a_host_that_reboots_within_seconds_is_nobodys_ghost(
    job: Job, hosts: Hosts, undisturbed: Undisturbed, halted: bool
) -> None:
    """All its processes and its memory are gone, and it answers before it can count as lost."""
    options = [STEPS, "gate=150"]
    start(job, "a:2,b:2", options=options).until("step 10 ")
    first = workers(job)
    hosts.reboot("b")
    for number in (2, 3):
        RankFiles(job.name, number).remove()
    wait_for(lambda: opened(job, 2) == opened(job, 3) == 2)
    assert sorted(started(job)) == [0, 1, 2, 2, 3, 3]
    assert workers(job)[:2] == first[:2]
    os.kill(workers(job)[3], signal.SIGKILL)  # a later death is replaced too
    wait_for(lambda: opened(job, 3) == 3)
    if halted:
        assert job.process is not None
        job.process.send_signal(signal.SIGTERM)
        job.until("SIGTERM")
    job.open_gate()
    job.finish()
    assert job.status == (HALTED if halted else 0), job.output
    assert halted or set(job.weights) == {undisturbed(STEPS)}, job.output
    job.assert_clean()


def test_a_host_is_lost_and_comes_back(job: Job, hosts: Hosts, undisturbed: Undisturbed) -> None:
    options = ["pause=0.1", STEPS]
    start(job, "a:2,b:2", options=options).until("step 10 ")
    first = workers(job)[:2]
    hosts.crash("b")
    job.until(sentence(HostLost("b", (2, 3)))).until(world_reason(HostGone("b"))).until("2 workers")
    hosts.mend("b")
    hosts.boot("b")
    job.until(sentence(HostBack("b"))).until(world_reason(Joined((2, 3)))).until("4 workers")
    assert workers(job)[:2] == first
    job.finish()
    assert job.status == 0, job.output
    assert job.weights == [undisturbed(options[1])] * 4, job.output
    assert started(job) == [0, 1, 2, 3, 2, 3] and hosts_lost(job) == ["b"]
    job.assert_clean()


@pytest.mark.parametrize("policy", ["shrink", "replace"])
def test_the_smaller_half_of_a_network_never_goes_on(
    job: Job, hosts: Hosts, policy: str, undisturbed: Undisturbed
) -> None:
    options = ["pause=0.1", STEPS]
    start(job, "a:2,b:2", "--on-failure", policy, options=options).until("step 10 ")
    others = workers(job)[2:]
    hosts.cut("b")
    job.until(world_reason(HostGone("b"))).until("2 workers")
    assert all(is_alive(worker) for worker in others)
    stopped = {rank: committed(job, rank) for rank in (2, 3)}
    job.until("2 workers").until("2 workers")
    hosts.mend("b")
    job.until(sentence(HostBack("b")))
    wait_for(lambda: not any(is_alive(worker) for worker in others))
    if policy == "replace":
        job.until("4 workers")
    job.finish()
    assert job.status == 0, job.output
    assert job.weights == [undisturbed(options[1])] * (4 if policy == "replace" else 2), job.output
    for rank, steps in stopped.items():
        more = committed(job, rank)[len(steps) :]
        joined = [e.time for e in read(job.path) if isinstance(e, Started) and e.rank == rank][1:]
        assert (not more) or joined, f"worker {rank} committed {more} while the others went on"
    job.assert_clean()


def test_a_launcher_with_the_smaller_half_halts(job: Job, hosts: Hosts, undisturbed: Undisturbed) -> None:
    options = ["pause=0.05", "steps=100"]
    start(job, "a:1,b:2", options=options).until("step 10 ")
    others, agent = workers(job)[1:], rank(job, 1).agent
    hosts.cut("b")
    job.finish()
    assert job.status == 75, job.output
    assert sentence(Halting(Minority((0,), (0, 1, 2)), checkpoint=True)) in job.output
    assert [event.step for event in read(job.path) if isinstance(event, Saved)][-1] >= 10
    assert max(committed(job, 1)) <= max(committed(job, 0))
    assert all(is_alive(worker) for worker in others)
    hosts.mend("b")
    wait_for(lambda: not is_alive(agent))  # on hosts with memory of their own, nobody would mind it
    job.start("--resume", job.name, script=[], name=False).until("3 workers")
    assert not any(is_alive(worker) for worker in others)
    job.finish()
    assert job.status == 0, job.output
    assert job.weights == [undisturbed(options[1])] * 3, job.output
    job.assert_clean()


def test_a_killed_launcher_is_replaced_on_several_hosts(job: Job, undisturbed: Undisturbed) -> None:
    start(job, "a:2,b:2").until("step 30 ")
    before = workers(job)
    agent = rank(job, 3).agent
    assert job.process is not None
    job.process.kill()
    job.output += job.process.communicate()[0]
    wait_for(lambda: not is_alive(agent))
    assert all(is_alive(worker) for worker in before)
    job.start("--attach", job.name, script=[], name=False).until("step 100 ")
    assert workers(job) == before
    job.finish()
    assert job.status == 0, job.output
    assert job.weights == [undisturbed(LONG[0])] * 4, job.output
    job.assert_clean()


def test_a_run_without_workers_is_not_attached_to_and_begun_again(job: Job, undisturbed: Undisturbed) -> None:
    """It began from nothing, in the same attempt, though there was a checkpoint."""
    start(job, "a:1,b:1", options=[STEPS, "gate=30"]).until("step 20 ")
    agent, before = rank(job, 1).agent, workers(job)
    assert job.process is not None
    job.process.kill()
    job.output += job.process.communicate()[0]
    for worker in before:
        os.kill(worker, signal.SIGKILL)
    wait_for(lambda: not is_alive(agent) and not any(map(is_alive, before)))
    refused = Job(job.folder, job.name, on=job.on)
    refused.start("--attach", job.name, script=[], name=False).finish()
    assert refused.status == 2 and "--resume" in refused.output, refused.output
    assert not any(isinstance(event, Began) and event.attached for event in read(job.path))
    job.open_gate()
    job.start("--resume", job.name, script=[], name=False).finish()
    assert job.status == 0 and set(job.weights) == {undisturbed(STEPS)}, job.output
    job.assert_clean()


def test_a_run_whose_workers_live_elsewhere_is_attached_to_and_not_resumed(job: Job, undisturbed: Undisturbed) -> None:
    """The launcher is on a host without workers, and somebody, or a scheduler, starts it again with --resume."""
    start(job, "b:2", options=[STEPS, "gate=30"]).until("step 20 ")
    before, agent = workers(job), rank(job, 1).agent
    assert job.process is not None
    job.process.kill()
    job.output += job.process.communicate()[0]
    wait_for(lambda: not is_alive(agent))
    refused = Job(job.folder, job.name, on=job.on)
    refused.start("--resume", job.name, "--min-workers", "2", script=[], name=False).finish()
    assert refused.status == 2 and all(str(worker) in refused.output for worker in before), refused.output
    job.open_gate()
    job.start("--resume", job.name, script=[], name=False).finish()
    assert job.status == 0, job.output
    assert started(job) == [0, 1] and set(job.weights) == {undisturbed(STEPS)}, job.output
    job.assert_clean()


@pytest.mark.parametrize(
    ("name", "agent", "values"),
    [
        ("nowhere:2", AGENT, ["'nowhere'"]),
        ("b:2", "no-such-command", ["'no-such-command'"]),
        ("b:2", "false", ["'b'", "'false'", "status 1"]),
    ],
)
def test_a_host_that_cannot_be_reached_is_one_sentence(job: Job, name: str, agent: str, values: list[str]) -> None:
    job.start("--hosts", f"a:1,{name}", "--launch-agent", agent, script=[SCRIPT]).finish()
    assert job.status == 2, job.output
    assert job.output.count("\n") == 1 and all(value in job.output for value in values), job.output
    assert processes(job.name) == [] and ranks_of(job.name) == []
    assert not (job.path / "run.json").exists()
