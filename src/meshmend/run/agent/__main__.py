"""`python -P -m meshmend.run.agent RUN FOLDER ADDRESS`: an agent, started by the launcher on another host."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from meshmend.base.clocks import AGENT_ALONE, BEAT
from meshmend.base.processes import is_here
from meshmend.base.sockets import LOOPBACK
from meshmend.base.waiting import readable
from meshmend.base.watchdog import Watchdog
from meshmend.errors import FormatError, JobError
from meshmend.job.shm import leave
from meshmend.job.shm.home import require_usual
from meshmend.job.shm.inspect import latest_attempt, waiting
from meshmend.job.signals import ignore_stops
from meshmend.run.agent.agent import Agent
from meshmend.run.agent.messages import (
    VERSION,
    Command,
    Hello,
    Report,
    Secret,
    pack,
    read_lines,
    reports,
    unpack_command,
    write_line,
)
from meshmend.run.probe import ProbeListener
from meshmend.run.supervisor.observations import RankSeen


def main(run: str, folder: str, address: str) -> None:
    """Serve until the launcher closes the connection or falls silent; the workers stay alive."""
    ignore_stops()
    alone = Watchdog(AGENT_ALONE)  # it also ends an agent that is stopped, or stuck writing to a dead connection
    agent, probes = Agent(run, Path(folder)), ProbeListener(address)
    known = "" if probes.address.startswith(LOOPBACK) else probes.address
    living = [worker.number for worker in waiting(run) if worker.visible and is_here(worker.number)]
    hello = Hello(port=probes.port, version=VERSION, address=known, living=living, attempt=latest_attempt(run))
    write_line(1, pack(hello))
    said: Sequence[RankSeen] | None = None
    last, buffer = 0.0, bytearray()
    while True:
        did = 0
        agent.wait(0)
        if readable([0], 0):
            lines = read_lines(0, buffer)
            if lines is None:
                return
            alone.feed()
            for command in map(unpack_command, lines):
                if isinstance(command, Secret):
                    probes.begin(bytes.fromhex(command.secret))
                elif isinstance(command, Command):
                    agent.act(command)
                    did += 1
        seen, output = agent.look(), agent.output()
        for report in reports(output, agent.epoch):
            write_line(1, pack(report))
        if seen != said or did or time.monotonic() - last > BEAT:
            write_line(1, pack(Report(observations=seen, did=did, epoch=agent.epoch)))
            said, last = seen, time.monotonic()


if __name__ == "__main__":
    try:
        require_usual()
        main(*sys.argv[1:])
    except FormatError as error:
        sys.exit(f"meshmend: the launcher sent an invalid message ({error}): install the same meshmend on all hosts")
    except JobError as mistake:
        sys.exit(f"meshmend: {mistake}")
    finally:
        leave(sys.argv[1])
