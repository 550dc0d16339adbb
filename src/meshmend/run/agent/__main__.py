"""`python -P -m meshmend.run.agent RUN FOLDER HOST`: an agent, started by the launcher on another host."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from meshmend.base.clocks import AGENT_ALONE, BEAT
from meshmend.base.waiting import readable
from meshmend.errors import JobError
from meshmend.job.shm import leave
from meshmend.job.shm.home import require_usual
from meshmend.job.signals import ignore_stops
from meshmend.run.agent.agent import Agent
from meshmend.run.agent.messages import Beat, Hello, Report, pack, read_lines, unpack_command, write_line
from meshmend.run.probe import ProbeListener
from meshmend.run.supervisor.observations import RankSeen


def main(run: str, folder: str, host: str) -> None:
    """Serve until the launcher closes the line or falls silent; workers live on."""
    ignore_stops()
    signal.alarm(AGENT_ALONE)  # it also ends an agent that is stuck writing into a dead line
    agent, probes = Agent(run, Path(folder)), ProbeListener(host)
    write_line(1, pack(Hello(port=probes.port)))
    said: Sequence[RankSeen] | None = None
    last, buffer = 0.0, bytearray()
    while True:
        did = 0
        agent.wait(0)
        probes.answer()
        if readable([0], 0):
            lines = read_lines(0, buffer)
            if lines is None:
                return
            signal.alarm(AGENT_ALONE)
            for command in map(unpack_command, lines):
                agent.act(command)
                did += not isinstance(command, Beat)
        seen, output = agent.look(), agent.output()
        if output:
            write_line(1, pack(Report(output=output)))
        if seen != said or did or time.monotonic() - last > BEAT:
            write_line(1, pack(Report(observations=seen, did=did)))
            said, last = seen, time.monotonic()


if __name__ == "__main__":
    try:
        require_usual()
        main(*sys.argv[1:])
    except JobError as mistake:
        sys.exit(f"meshmend: {mistake}")
    finally:
        leave(sys.argv[1])
