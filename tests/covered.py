"""What the tests ran: `python -m tests.covered` after `coverage run`, and with `--holes`, what they never entered.

Workers, couriers and agents are measured too. A process that is killed with SIGKILL takes its figures with it, so that
code which runs just before a death may count as never run.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from coverage import Coverage
from coverage.exceptions import NoDataError

SOURCE = Path(__file__).parent.parent / "src" / "meshmend"
DETAILED = ("job", "run")
"""Folders whose own folders have a line each."""


def folder_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).parts[:-1]
    return "/".join(parts[: 2 if parts[:1] and parts[0] in DETAILED else 1]) or "."


def missed(measured: Coverage) -> dict[Path, tuple[set[int], set[int]]]:
    """For each file its statements, and those that never ran."""
    found = {}
    omitted = [str(pattern) for pattern in _list(measured.get_option("run:omit"))]
    for path in sorted(SOURCE.rglob("*.py")):
        if any(fnmatch(str(path), pattern) for pattern in omitted):
            continue
        _, statements, _, missing, _ = measured.analysis2(str(path))
        found[path] = (set(statements), set(missing))
    return found


def table(found: dict[Path, tuple[set[int], set[int]]]) -> Iterator[str]:
    """One line per folder, those of the job half first."""
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for path, (statements, missing) in found.items():
        for name in (folder_of(path), "all"):
            sums[name][0] += len(statements)
            sums[name][1] += len(missing)
    job_half = [name for name in sums if name.split("/")[0] in DETAILED]
    rest = [name for name in sums if name not in job_half and name != "all"]
    yield f"{'folder':<20}{'statements':>12}{'not run':>10}{'run':>8}"
    for name in [*sorted(job_half), *sorted(rest), "all"]:
        statements, missing = sums[name]
        yield f"{name:<20}{statements:>12}{missing:>10}{1 - missing / max(statements, 1):>8.1%}"


def holes(found: dict[Path, tuple[set[int], set[int]]]) -> Iterator[str]:
    """Functions of the job half that no test entered, by file, largest file first."""
    for path, (_, missing) in sorted(found.items(), key=lambda item: -len(item[1][1])):
        if not missing or folder_of(path).split("/")[0] not in DETAILED:
            continue
        names = []
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                body = {line for part in node.body for line in range(part.lineno, (part.end_lineno or 0) + 1)}
                ran = found[path][0] & body
                if ran and ran <= missing:
                    names.append(node.name)
        yield f"{path.relative_to(SOURCE)}: {len(missing)} statements; never entered: {', '.join(names) or 'none'}"


def _list(option: object) -> list[object]:
    return option if isinstance(option, list) else []


def main(*words: str) -> int:
    measured = Coverage()
    try:
        measured.combine()
    except NoDataError:
        measured.load()  # combined before
    measured.save()
    found = missed(measured)
    print("\n".join(table(found)))
    if "--holes" in words:
        print("\n".join(holes(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
