"""The systems of the comparison: what each is started with, and what it is compared to."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, field
from pathlib import Path

import envs

SCRIPTS = Path(__file__).parent / "scripts"
ONE_THREAD = {
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC"), "1"),
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "JAX_PLATFORMS": "cpu",
}  # one thread a process: there are already more processes than cores


@dataclass(frozen=True)
class Waits:
    """How long torchft waits for what, by size: milliseconds, and seconds for a sum."""

    silence: int
    """Without a heartbeat, before a group is dead."""
    join: int
    """For groups that live and have not asked for a quorum yet."""
    tick: int
    """Between two looks at who wants a quorum."""
    heartbeat: int
    sum: float


@dataclass(frozen=True)
class System:
    """One way to train."""

    title: str
    script: str
    how: str
    """How it is started: ranks, torchrun, torchft, mpirun or meshmend."""
    env: str = "meshmend"
    beside: tuple[str, ...] = ()
    """The same loop without fault tolerance."""
    goes_on: bool = False
    """Whether it is meant to go on when a worker dies."""
    words: tuple[str, ...] = ()
    waits: dict[int, Waits] = field(default_factory=dict)

    @property
    def plain(self) -> str:
        """The script in one process that its script is made from."""
        return "plain_jax.py" if "jax" in self.script else "plain_torch.py"


ALL = {
    "ddp": System("DDP + gloo", "ddp.py", "ranks"),
    "meshmend": System(
        "meshmend, PyTorch", "meshmend_torch.py", "meshmend", beside=("ddp", "mpi"), goes_on=True, words=("float",)
    ),
    "torchft": System(
        "torchft, tuned", "torchft_ddp.py", "torchft", env="torchft", beside=("ddp",), goes_on=True,
        waits={25: Waits(300, 2000, 20, 50, 0.5), 100: Waits(300, 2000, 20, 50, 1)},
    ),
    "torchft-default": System(
        "torchft, defaults", "torchft_ddp.py", "torchft", env="torchft", beside=("ddp",), goes_on=True,
        waits=dict.fromkeys((25, 100), Waits(5000, 60000, 100, 100, 5)),
    ),
    "torchrun": System("torchrun, restart", "restart.py", "torchrun", beside=("ddp",), goes_on=True),
    "mpi": System("bare mpi4py, PyTorch", "mpi_torch.py", "mpirun"),
    "mpi-jax": System("bare mpi4py, JAX", "mpi_jax.py", "mpirun"),
    "meshmend-jax": System(
        "meshmend, JAX", "meshmend_jax.py", "meshmend", beside=("mpi-jax",), goes_on=True, words=("float",)
    ),
    "meshmend-exact": System(
        "meshmend, PyTorch, exact", "meshmend_torch.py", "meshmend", beside=("ddp", "mpi"), goes_on=True,
        words=("exact",),
    ),
    "meshmend-wrap": System(
        "meshmend, PyTorch, wrapped loop", "meshmend_wrap.py", "meshmend", beside=("ddp", "mpi"), goes_on=True,
        words=("float",),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Line:
    """A command, and what it needs in its environment."""

    words: list[str]
    settings: dict[str, str]


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return int(one.getsockname()[1])


def lighthouse(system: System, size: int, port: int) -> Line:
    """The lighthouse that torchft needs."""
    program, waits = str(envs.python(system.env).parent / "torchft_lighthouse"), system.waits[size]
    words = ["--heartbeat_timeout_ms", str(waits.silence), "--join_timeout_ms", str(waits.join)]
    words += ["--quorum_tick_ms", str(waits.tick), "--min_replicas", "1", "--bind", f"[::]:{port}"]
    return Line([program, *words], {"RUST_LOG": "warn"})


def lines(system: System, size: int, workers: int, port: int, folder: Path, memory: Path) -> list[Line]:
    """The commands that start it; for torchft one a group, to be started again when that one dies."""
    python, script = str(envs.python(system.env)), str(SCRIPTS / system.script)
    beside = envs.python(system.env).parent
    if system.how == "ranks":
        shared = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": str(workers)}
        return [Line([python, script, str(size)], {**shared, "RANK": str(rank)}) for rank in range(workers)]
    if system.how == "torchft":
        waits = system.waits[size]
        settings = {"TORCHFT_LIGHTHOUSE": f"http://localhost:{port}", "NUM_REPLICA_GROUPS": str(workers)}
        settings |= {"SUM_SECONDS": str(waits.sum), "HEARTBEAT_MS": str(waits.heartbeat)}
        return [
            Line([python, script, str(size)], {**settings, "REPLICA_GROUP_ID": str(group)}) for group in range(workers)
        ]
    if system.how == "torchrun":
        words = ["--nproc-per-node", str(workers), "--max-restarts", "5", "--rdzv-backend", "c10d"]
        words += ["--rdzv-endpoint", f"localhost:{port}"]
        # Otherwise the restarted find the addresses of the dead in the agent's store, and cannot connect to them.
        settings = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        return [Line([str(beside / "torchrun"), *words, script, str(size), str(folder / "checkpoint.pt")], settings)]
    if system.how == "mpirun":
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        words = ["--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1", "--mca", "pml", "ob1"]
        words += ["--mca", "btl", "self,sm,tcp", "--mca", "btl_sm_backing_directory", str(memory)]
        return [Line([str(beside / "mpirun"), *root, *words, "-n", str(workers), python, script, str(size)], {})]
    words = ["-m", "meshmend", "run", "-n", str(workers), "--name", memory.name, script, str(size), str(workers)]
    return [Line([python, *words, *system.words], {"MESHMEND_RUNS": str(folder)})]
