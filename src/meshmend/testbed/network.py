"""A real mesh on one machine: a network namespace is a chip, a veth pair a link, and `tc tbf` the speed of the link.

    chip-0-0 east ── west chip-0-1     Inside a chip, a device is called by where it leads. The chip's one address,
      south                 south      10.77.(row + 1).(col + 1), is on a device of its own, so that it stays whichever
        │                     │        links are lost. Packets cross the chips between as `routes.py` says, and wait
      north                 north      where links are busy; as on real links none is lost by that, so queues are long
    chip-1-0 east ── west chip-1-1     and windows short.

Only the speed is artificial; the packets and their contention are real.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from meshmend.base.units import read_rate
from meshmend.errors import TestbedError
from meshmend.mesh import Chip, Mesh
from meshmend.mesh.grid import chip_text
from meshmend.run.clusters.ssh import KEEPALIVE
from meshmend.run.world.mpirun import OPTIONS, mpirun
from meshmend.testbed import namespaces
from meshmend.testbed.privileges import undisturbed, unwinding
from meshmend.testbed.routes import routes
from meshmend.testbed.wiring import DEVICE, LAYERS, ROWS, Wiring, address, host, space

MOST_CHIPS = 256
OVER_LINKS = [
    "--mca", "btl", "self,tcp",                       # chips share no memory
    "--mca", "btl_tcp_if_include", DEVICE,
    "--prtemca", "prte_if_include", DEVICE,
    *KEEPALIVE,
    "--leave-session-attached",                       # a daemon that detaches may miss the end of a short command
]  # fmt: skip


SLOWLY = ["sh", "-c", 'sleep 1 && exec "$@"', "sh"]
"""A daemon, even attached, may miss the exit of a rank that exits immediately, and mpirun would wait forever."""


class Testbed:
    """A mesh of namespaces, while it is open: `with Testbed(Mesh.parse("4x4"), "50mbit") as bed: …`."""

    _here: ClassVar[Testbed | None] = None
    """The open testbed: a process has one at a time, because namespaces are named after its number."""
    __test__ = False  # it holds no tests, whatever pytest thinks of its name

    def __init__(self, mesh: Mesh, rate: str) -> None:
        mesh.require_connected()
        if mesh.rows > 254 or mesh.cols > 254 or len(mesh.live) > MOST_CHIPS:
            raise TestbedError(f"{mesh} has {len(mesh.live)} live chips: a testbed has at most {MOST_CHIPS}")
        if mesh.layers > 1 and (mesh.rows > ROWS or mesh.layers > LAYERS):
            raise TestbedError(
                f"{mesh} is too large: a testbed with layers has at most {ROWS} rows and {LAYERS} layers"
            )
        self.mesh, self.rate = mesh, read_rate(rate)
        self._open = ExitStack()
        self._forget()

    def _forget(self) -> None:
        self._home: Path | None = None
        self._chips: set[int] = set()
        self._links: set[tuple[int, int]] = set()
        self._routes: npt.NDArray[np.int8] = np.full((self.mesh.size, self.mesh.size), -1, np.int8)

    def __enter__(self) -> Testbed:
        why = namespaces.why_not()
        if why:
            raise TestbedError(f"a testbed needs root, or user namespaces: {why}")
        if Testbed._here is not None:
            raise TestbedError("this process has a testbed open already: close that first")
        namespaces.remove_stale()
        self._open.enter_context(unwinding())
        Testbed._here = self
        try:
            self._remove()  # a process that was killed may have had our number
            self._home = namespaces.make_home()
            names = "".join(f"{address(chip)} {host(chip)}\n" for chip in self._all())
            (self.home / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
            self._become(self.mesh)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all that runs in it, and leave nothing behind."""
        if Testbed._here is not self:
            return
        with undisturbed():
            self._remove()
            self._forget()
            Testbed._here = None
        self._open.close()

    def _remove(self) -> None:
        spaces = [space(chip) for chip in self._all()]
        namespaces.remove(*spaces)
        for home in namespaces.homes(os.getpid()):
            namespaces.remove_home(home)

    @property
    def home(self) -> Path:
        """Where the testbed keeps its files."""
        if self._home is None:
            raise TestbedError("the testbed is not open: use it in a with statement")
        return self._home

    @property
    def chips(self) -> list[Chip]:
        """The live chips, row by row: the chip of each rank."""
        return [self.mesh.chip(i) for i in self.mesh.live]

    @property
    def hosts(self) -> list[str]:
        """The live chips as hosts, `chip-ROW-COL`."""
        return [host(chip) for chip in self.chips]

    @property
    def agent(self) -> str:
        """A launch agent for mpirun and `meshmend run`: it gets a host and a command, and runs that there."""
        return shlex.join(namespaces.agent(self.home))

    def line(self, chip: Chip, *command: str) -> list[str]:
        """The words that run a command on a chip; the process that they become is the command's own."""
        if not self.mesh.alive[self.mesh.index(chip)]:
            raise TestbedError(f"chip {chip_text(chip)} is dead: choose one of the {len(self.chips)} live chips")
        return namespaces.line(self.home, host(chip), *command)

    def mpirun(self, *command: str, head: Chip | None = None, options: Sequence[str] = ()) -> list[str]:
        """The words that run a command once on every live chip, rank by rank; mpirun itself is on the head chip."""
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        program = mpirun()
        start = ["--prtemca", "plm_ssh_agent", self.agent, "--prefix", str(Path(program).parent.parent)]
        files = ["--prtemca", "prte_tmpdir_base", str(self.home)]
        where = ["--host", ",".join(f"{name}:1" for name in self.hosts), "-n", str(len(self.chips))]
        line = [program, *root, *OPTIONS, *OVER_LINKS, *start, *files, *where, *options, *SLOWLY, *command]
        return self.line(head or self.chips[0], *line)

    def processes(self, chip: Chip) -> list[int]:
        """What runs on a chip."""
        return namespaces.processes(space(chip))

    def cut(self, hole: str) -> None:
        """Lose chips and links, such as "2x2@0,2" or "link@0,0:0,1"; packets between live chips go around them.

        A chip dies as in a power failure: it notifies no other chip, and what ran on it is gone. The processes at the
        ends of a lost link stay alive.
        """
        self._become(self.mesh.fail(hole))

    def mend(self, hole: str) -> None:
        """Bring lost chips and links back; a chip comes back empty, with all its links."""
        mesh = self.mesh
        back = replace(mesh, dead_chips=frozenset(), dead_links=frozenset()).fail(hole)
        chips, links = mesh.dead_chips - back.dead_chips, mesh.dead_links - back.dead_links
        self._become(replace(mesh, dead_chips=chips, dead_links=links))

    def _become(self, mesh: Mesh) -> None:
        """Change the present network into this mesh."""
        chips, links = {int(i) for i in mesh.live}, {(int(i), int(way)) for i, way in mesh.links}
        wiring, memory = Wiring(mesh), namespaces.MEMORY / self.home.name
        for i, way in self._links - links:
            wiring.no_link(i, way)
        wiring.do()  # before processes end, so that they cannot notify other chips
        lost = [space(mesh.chip(i)) for i in self._chips - chips]
        namespaces.remove(*lost)
        for i in self._chips - chips:
            shutil.rmtree(memory / host(mesh.chip(i)), ignore_errors=True)
        self._routes[list(self._chips - chips)] = -1
        for i in chips - self._chips:
            wiring.chip(i)
            (memory / host(mesh.chip(i))).mkdir()
        for i, way in links - self._links:
            wiring.link(i, way, self.rate)
        table = routes(mesh)
        for i, there in np.argwhere((table != self._routes) & mesh.alive[:, None]):
            wiring.route(int(i), int(there), int(table[i, there]))
        self.mesh, self._chips, self._links, self._routes = mesh, chips, links, table
        wiring.do()

    def _all(self) -> list[Chip]:
        return [self.mesh.chip(i) for i in range(self.mesh.size)]
