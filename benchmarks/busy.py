"""`make test` several times in a row, beside busy loops that take the processor from it: `busy.py [TIMES] [LOOPS]`.

No test may fail because the machine is slow. The loops have the tests' own priority.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from meshmend.base.processes import die_with_parent

ROOT = Path(__file__).parent.parent


@contextlib.contextmanager
def busy(loops: int) -> Iterator[None]:
    """Have so many processes compute meanwhile."""
    command = [sys.executable, "-c", "while True: pass"]
    running = [subprocess.Popen(command, preexec_fn=die_with_parent) for _ in range(loops)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def main(times: int = 5, loops: int = 4) -> int:
    with busy(loops):
        for number in range(1, times + 1):
            begin = time.monotonic()
            status = subprocess.run(["make", "test"], cwd=ROOT).returncode
            how = "passed" if status == 0 else f"failed with status {status}"
            print(f"== run {number} of {times} beside {loops} busy loops {how} in {time.monotonic() - begin:.0f} s")
            if status:
                return status
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
