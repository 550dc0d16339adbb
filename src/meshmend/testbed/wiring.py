"""What is in a chip's namespace: its address, its ends of links and their speed, its ways to the other chips.

A `Wiring` gathers what is to be done in each namespace, so that one shell does all of it there: 36 chips take a second.
"""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

from meshmend.mesh import Mesh
from meshmend.mesh.grid import Chip, opposite
from meshmend.testbed.namespaces import ip, shell, space_of

DEVICE = "chip"
"""The device that bears a chip's address."""
WAYS = ("north", "east", "south", "west", "front", "back")
"""The devices that are ends of links, called by where they lead."""
MTU = 9000
"""Bytes of a packet: jumbo frames, as fast networks use, and a sixth of the work for this machine's processors."""
QUEUE = 16 << 20
"""Bytes that may wait for a link: more than the windows of sixty flows."""
ROWS, LAYERS = 32, 7
"""Most rows and layers of a mesh with layers: both are in one byte of an address."""
BURST = 0.001
"""Seconds that a link which was idle, or served late by a busy machine, may make up for."""
SETTINGS = {
    "ipv6/conf/all/disable_ipv6": "1",        # it would greet on every device
    "ipv4/ip_forward": "1",
    "ipv4/conf/all/rp_filter": "0",           # the way back may be another one
    "ipv4/conf/default/rp_filter": "0",
    "ipv4/tcp_congestion_control": "reno",    # nothing is lost, so the windows decide; bbr would pace by guesses
    "ipv4/tcp_slow_start_after_idle": "0",
    "ipv4/tcp_no_metrics_save": "1",
    "ipv4/tcp_rmem": "4096 524288 524288",    # the same window for all, so that they share alike
    "ipv4/tcp_wmem": "4096 524288 524288",
    "ipv4/tcp_retries2": "6",                 # a peer that stays silent is given up after ten seconds or so
    "ipv4/tcp_syn_retries": "3",
}  # fmt: skip
"""Of the kernel, for each chip."""


def host(chip: Chip) -> str:
    """The name of a chip as a host."""
    return "-".join(["chip", *map(str, chip)])


def address(chip: Chip) -> str:
    """A chip's one address."""
    row, col, layer = (*chip, 0)[:3]
    return f"10.77.{ROWS * layer + row + 1}.{col + 1}"


def space(chip: Chip) -> str:
    """A chip's namespace."""
    return space_of(host(chip))


class Wiring:
    """What is to be done in the chips' namespaces of a mesh."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._made: list[str] = []
        self._ip: dict[int, list[str]] = defaultdict(list)
        self._tc: dict[int, list[str]] = defaultdict(list)
        self._set: dict[int, list[str]] = defaultdict(list)

    def do(self) -> None:
        """Do it now."""
        if self._made:
            ip(self._made)
        scripts = {i: self._script(i) for i in {*self._ip, *self._tc, *self._set}}
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda i: shell(self._space(i), scripts[i]), scripts))
        self._made.clear()
        for part in (self._ip, self._tc, self._set):
            part.clear()

    def _script(self, i: int) -> str:
        batches = [f"{tool} -batch - <<.\n{chr(10).join(lines[i])}\n.\n" for tool, lines in self._tools() if lines[i]]
        return "\n".join([*self._set[i], *batches])

    def _tools(self) -> list[tuple[str, dict[int, list[str]]]]:
        return [("ip", self._ip), ("tc", self._tc)]

    def chip(self, i: int) -> None:
        """A chip, with its address."""
        here = self._space(i)
        self._made.append(f"netns add {here}")
        self._made.append(f"link add {DEVICE} netns {here} type veth peer name nowhere netns {here}")
        paths = {f"/proc/sys/net/{name}": value for name, value in SETTINGS.items()}
        self._set[i] += [f"test ! -e {path} || echo {value} > {path}" for path, value in paths.items()]
        self._ip[i] += [f"link set dev {device} up" for device in ("lo", "nowhere", DEVICE)]
        # As if all chips were on one network, so that Open MPI does not doubt that they reach each other.
        self._ip[i].append(f"addr add {self._address(i)}/16 dev {DEVICE} noprefixroute")

    def link(self, i: int, way: int, rate: float) -> None:
        """A link from a chip that way."""
        there = int(self.mesh.neighbour[i, way])
        ends = [self._end(i, way), self._end(there, opposite(way))]
        self._made.append(f"link add name {ends[0]} type veth peer name {ends[1]}")
        self._join(i, way, there, rate)
        self._join(there, opposite(way), i, rate)

    def no_link(self, i: int, way: int) -> None:
        """A link less; both its ends go."""
        self._ip[i].append(f"link del dev {WAYS[way]}")

    def route(self, i: int, there: int, way: int) -> None:
        """Return the way by which packets leave a chip for another; -1 if there is none any more."""
        if way < 0:
            self._ip[i].append(f"route replace unreachable {self._address(there)}")
            return
        via = f"via {self._address(int(self.mesh.neighbour[i, way]))} dev {WAYS[way]} onlink"
        self._ip[i].append(f"route replace {self._address(there)} {via} src {self._address(i)}")

    def _join(self, i: int, way: int, there: int, rate: float) -> None:
        device, burst = WAYS[way], max(2 * (MTU + 14), round(rate / 8 * BURST))
        self._ip[i].append(f"link set dev {device} gso_max_segs 1 up")
        # A fixed entry for the neighbour's hardware address: an ARP answer could come late when the link is busy.
        neighbour = f"{self._address(there)} lladdr {self._hardware(there, opposite(way))}"
        self._ip[i].append(f"neigh add {neighbour} nud permanent dev {device}")
        self._tc[i].append(f"qdisc add dev {device} root tbf rate {rate:.0f}bit burst {burst}b limit {QUEUE}b")

    def _end(self, i: int, way: int) -> str:
        return f"{WAYS[way]} address {self._hardware(i, way)} mtu {MTU} netns {self._space(i)}"

    def _hardware(self, i: int, way: int) -> str:
        row, col, layer = (*self.mesh.chip(i), 0)[:3]
        return f"02:4d:{layer:02x}:{row:02x}:{col:02x}:{way:02x}"

    def _address(self, i: int) -> str:
        return address(self.mesh.chip(i))

    def _space(self, i: int) -> str:
        return space(self.mesh.chip(i))
