"""`python -P -m meshmend.job.warm SCRIPT ARGS…`: waits to become a worker, with the script's libraries loaded.

To import PyTorch or JAX takes seconds, for which a replacement would keep the others waiting. So an agent can keep some
processes that have done this already (`meshmend run --warm`). One of them reads its place in the run as a line of JSON
from its standard input, and runs the script from the beginning as any worker does. When the agent is gone, its input
ends, and so does it.

It imports what the script itself imports first: the statements before the first one that is no import. What follows
may depend on a variable that the script sets, and modules from the script's own folder may do anything when they are
imported; both are left to the script.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from meshmend.errors import FormatError
from meshmend.job import worker


def assignment(environment: Mapping[str, str], output: Path) -> bytes:
    """The line that makes a worker of it: the variables that the worker reads, and the file to which it prints."""
    return (json.dumps({"environment": dict(environment), "output": str(output)}) + "\n").encode()


def first_imports(script: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Modules that a script imports before it does anything else, each with the names that it takes from it."""
    statements = ast.parse(script.read_bytes()).body
    if statements and isinstance(statements[0], ast.Expr) and isinstance(statements[0].value, ast.Constant):
        del statements[0]  # its docstring
    for statement in statements:
        if isinstance(statement, ast.Import):
            yield from ((one.name, ()) for one in statement.names)
        elif isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
            yield statement.module, tuple(one.name for one in statement.names)
        else:
            return


def load(script: Path) -> None:
    """Import them; an import that fails is left to the script, which will say so."""
    with contextlib.suppress(Exception):
        for name, parts in first_imports(script):
            package = name.partition(".")[0]
            if (script.parent / package).exists() or (script.parent / f"{package}.py").exists():
                return  # the script's own, which may have the name of an installed one
            module = importlib.import_module(name)
            for part in parts:
                if not hasattr(module, part):
                    importlib.import_module(f"{name}.{part}")


def main(words: list[str]) -> None:
    """Load, wait, and become a worker."""
    load(Path(words[0]).resolve())
    with open(0, "rb", closefd=False) as orders:
        line = orders.readline()
    if not line.endswith(b"\n"):
        return  # the agent is gone
    try:
        given = json.loads(line)
        environment, output = {str(k): str(v) for k, v in given["environment"].items()}, str(given["output"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise FormatError(f"an invalid order: {line[:200]!r}") from None
    os.environ.update(environment)
    printed = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for old, new in ((nothing, 0), (printed, 1), (printed, 2)):
        os.dup2(old, new)
    worker.main(words)


if __name__ == "__main__":
    main(sys.argv[1:])
