"""The command line: a file per verb, each one short function. Choices come from the registries."""

from __future__ import annotations

import io
import signal
import sys
from importlib import import_module

from cyclopts import CycloptsError

from meshmend.cli.app import app
from meshmend.cli.arguments import join_mesh, leave_script
from meshmend.errors import MeshmendError

VERBS = {
    "run": ["run"], "demo": ["demo"], "audit": ["audit"], "export": ["export"], "chaos": ["chaos"],
    "watch": ["watch"], "report": ["report"], "doctor": ["doctor"], "plan": ["plan"], "verify": ["plan"],
    "testbed": ["testbed"], "simulate": ["simulate", "simulate_step", "simulate_fleet", "simulate_cubes"],
}  # fmt: skip
"""The files of each verb, which add themselves to the application when they are imported."""


def main(words: list[str] | None = None) -> int:
    """Run a command; a user's mistake is one message and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without arrows shows ? and not a stack trace
    try:
        words = sys.argv[1:] if words is None else words
        _load(words[0] if words else "")
        return app(leave_script(words) if words[:1] == ["run"] else join_mesh(words), exit_on_error=False) or 0
    except MeshmendError as error:
        print(f"meshmend: {error}", file=sys.stderr)
    except CycloptsError:
        pass  # already printed, with what was probably meant
    except BrokenPipeError:
        sys.stderr.close()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT  # as shells do; a run that has begun has a handler of its own
    return 2


def _load(verb: str) -> None:
    """Import what this verb needs: a run has better things to do than to load the simulators. --help shows all."""
    for file in VERBS.get(verb) or dict.fromkeys(file for files in VERBS.values() for file in files):
        import_module(f"meshmend.cli.{file}")


if __name__ == "__main__":
    sys.exit(main())
