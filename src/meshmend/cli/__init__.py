"""The command line: one short function per verb."""

from __future__ import annotations

import io
import sys

from cyclopts import CycloptsError

from meshmend.cli import simulate_fleet as simulate_fleet
from meshmend.cli.app import app
from meshmend.cli.audit import audit as audit
from meshmend.cli.job import leave_script
from meshmend.cli.plan import join_mesh
from meshmend.cli.simulate import simulate as simulate
from meshmend.cli.simulate_step import step as step
from meshmend.cli.testbed import testbed as testbed
from meshmend.errors import MeshmendError


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
