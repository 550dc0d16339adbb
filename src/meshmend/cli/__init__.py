"""The command line: a file per verb, each one short function. Choices come from the registries."""

from __future__ import annotations

import io
import sys

from cyclopts import CycloptsError

from meshmend.cli import audit, chaos, demo, doctor, export, simulate, simulate_fleet, simulate_step, testbed
from meshmend.cli.app import app
from meshmend.cli.plan import join_mesh
from meshmend.cli.run import leave_script
from meshmend.errors import MeshmendError

VERBS = (audit, chaos, demo, doctor, export, simulate, simulate_fleet, simulate_step, testbed)
"""Files that add themselves to the application when they are imported, besides run and plan."""


def main(words: list[str] | None = None) -> int:
    """Run a command; a user's mistake is one message and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without arrows shows ? and not a stack trace
    try:
        words = sys.argv[1:] if words is None else words
        return app(leave_script(words) if words[:1] == ["run"] else join_mesh(words), exit_on_error=False) or 0
    except MeshmendError as error:
        print(f"meshmend: {error}", file=sys.stderr)
    except CycloptsError:
        pass  # already printed, with what was probably meant
    except BrokenPipeError:
        sys.stderr.close()
    return 2


if __name__ == "__main__":
    sys.exit(main())
