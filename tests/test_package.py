"""The public names, who may import whom, and that importing meshmend is light."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import meshmend

SOURCE = Path(meshmend.__file__).parent
PUBLIC = {
    "ALGORITHMS", "Bound", "Disconnected", "Fabric", "Flow", "FormatError", "Graph", "LINKS", "LinkSpeed", "Mesh",
    "MeshError",
    "MeshmendError", "MissingLibrary", "NoRing", "NotFinite", "PRESETS", "Plan", "Job", "COLLECTIVES", "CollectivePlan",
    "CollectiveSchedule", "CutBound", "Tile", "tile",
    "JobError", "PlanError", "Proof", "Schedule", "VerifyError", "bound", "load", "local",
    "plan", "save", "simulate", "verify", "PictureError", "SimulateError", "load_checkpoint", "on_first",
    "EmbeddingTables", "RowOptimizer", "WarmupDecay", "clipped", "lamb", "lars", "optimizer", "row_adagrad", "row_sgd",
    "spread_roots",
}  # fmt: skip
LAW: dict[str, list[str]] = {
    "": [
        "errors", "base", "telemetry", "mesh", "simulator", "job", "testing", "run", "report", "testbed", "demo",
        "cli", "__main__",
    ],
    "job": [
        "protocol", "sharding", "state", "data", "reduction", "frameworks", "shm", "device", "faults", "exchange",
        "evaluation", "progress", "ledger", "config", "session", "sequence", "checkpoints", "replica", "slices",
        "embeddings", "call_order", "hints", "training", "beginning", "job", "first", "loading", "transport", "signals",
        "courier", "worker", "warm",
    ],
    "job/session": ["hooks", "listener", "message_room", "own_footer", "own_part", "patience", "session", "solo"],
    "job/checkpoints": ["folders", "interval", "checkpoints", "saving"],
    "job/slices": [
        "measures", "holder", "files", "optimizers", "large_batch", "replica", "checkpoints", "saving", "answers",
    ],
    "job/embeddings": [
        "shape", "placement", "optimizers", "contacts", "message", "shelf", "files", "requests", "port", "others",
        "holder", "tables", "replica", "saving", "spreading",
    ],
    "job/protocol": [
        "rounds", "records", "operations", "agreement", "recovery", "member",
    ],
    "job/sharding": ["slices", "placement", "plan", "records", "operations", "copies", "recovery", "member"],
    "job/data": [
        "lanes", "source", "padding", "streams", "image_folder", "tables", "cache_file", "cache", "reading", "pipeline",
        "feed", "augment",
    ],
    "job/state": ["tree", "kinds", "digest", "codec", "values", "safetensors"],
    "job/reduction": [
        "layout", "base", "footer", "float32", "bf16", "exact", "packing", "pieces", "norms",
        "registry",
    ],
    "job/frameworks": [
        "base", "device", "packed", "jax", "arrays", "weights", "elementwise", "torch", "choose", "draws",
    ],
    "job/frameworks/jax": [
        "tree", "optimizer", "host", "shards", "digest", "wires", "exact", "exact_shards", "sums", "sharded", "state",
    ],
    "job/frameworks/torch": [
        "rng", "digest_plain", "triton_digest", "digest", "state_dict", "listed", "host", "wires", "exact", "sums",
        "state", "sharded_optimizer", "weights", "buffer_changes", "device", "per_update", "loop", "data",
    ],
    "job/device": [
        "base", "packing_plain", "stand_in", "kernels", "packing_cuda", "digests", "cuda", "passing", "trial",
        "block_layout", "own_block", "mapped_blocks", "totals", "sums", "block_messages", "states", "host_memory",
        "choose", "registered", "registered_buffers", "messages", "failures",
    ],
    "job/transport": [
        "base", "carrier", "crew", "shared_memory", "pipeline", "device_memory", "library_mpi", "mesh_mpi", "choose",
    ],
    "job/shm": [
        "words", "records", "marks", "home", "files", "copies", "presence", "buffers", "slices", "doorbell", "control",
        "segment", "sliced", "mailbox", "memory", "sharded_memory", "inspect",
    ],
    "job/faults": ["base", "kinds", "inject"],
    "job/courier": [
        "command", "timings", "parent", "mpi", "holder_port", "host_routes", "between_hosts_mpi", "copies_mpi",
        "sharded_mpi", "worker_messages", "worker_port", "copy_port", "slice_port", "differences", "courier",
        "__main__",
    ],
    "run": [
        "supervisor", "news", "outlet", "console", "clusters", "spec", "checks", "journal", "heartbeat", "disk",
        "secret", "listener", "probe", "door", "world", "agent", "hosts", "doctor", "chaos", "launcher", "entry",
        "run_module",
    ],
    "run/agent": ["pulse", "output", "messages", "local_worker", "warm", "agent", "__main__"],
    "run/supervisor": [
        "observations", "messages", "actions", "ranks", "patience", "state", "worlds", "deaths", "health", "halting",
        "jobs", "restart", "policies", "hosts", "newcomers", "decide",
    ],
    "run/hosts": ["remote", "pool", "newcomers"],
    "run/world": ["mpirun", "world"],
    "run/clusters": ["hosts", "base", "local", "ssh", "slurm", "kubernetes", "jobset"],
    "run/doctor": ["programs", "devices", "kill_test", "kill_test_mpi", "checks"],
    "telemetry": ["epoch", "types", "steps", "compaction", "folder", "reader"],
    "report": [
        "columns", "jobs", "ledger", "findings", "stalls", "evaluations", "copies", "audit", "timeline", "victims",
        "fold", "incidents", "text", "labels", "curves", "loss_plot", "roster", "goodput", "costs", "history",
        "sentences", "metrics", "document", "page",
    ],
    "report/metrics": ["prometheus", "trace", "logs", "tensorboard"],
    "report/document": ["blocks", "story", "write"],
    "report/page": ["mesh", "snapshot", "live", "document", "export", "kill", "app", "server"],
    "mesh": [
        "cabling", "numbering", "grid", "hole", "presets", "textproto", "descriptor", "notation", "random_holes",
        "ascii", "fabric", "graph_notation", "graph", "mesh", "read", "digest", "planners", "schedule", "collectives",
        "staged", "files", "proof", "executors", "exports", "drawing", "choose",
    ],
    "mesh/planners": [
        "bound", "plan", "base", "packing", "cost", "floor", "combs", "trees", "ring", "rowpair", "rowcol", "roots",
        "files",
    ],
    "mesh/schedule": ["scheduler", "schedule"],
    "mesh/collectives": [
        "collective", "groups", "bounds", "plan", "schedule", "routes", "group_sums", "all_gather", "broadcast",
        "all_to_all", "slow_links", "planner",
    ],
    "mesh/staged": ["plan", "schedule", "spaced"],
    "mesh/files": ["staged", "forms", "binary", "text", "files"],
    "mesh/proof": ["plan", "schedule", "proof", "collective", "staged"],
    "mesh/executors": [
        "base", "slots", "placement", "pieces", "collectives", "staged", "reference", "jax_cores", "jax_tables",
        "jax_collectives", "jax_pallas", "jax", "mpi", "mpi_turns", "mpi_collectives", "mpi_staged",
    ],
    "mesh/exports": ["chakra", "msccl", "mscclpp"],
    "mesh/drawing": ["text", "marks", "isometric", "svg"],
    "base": [
        "status", "clocks", "signatures", "units", "env", "processes", "watchdog", "waiting", "sockets", "proofs",
        "private_network", "log_files", "regular_files", "whole_files", "schema", "mapped", "kernels", "cuda",
        "registry", "terminal", "marked_lines", "theme",
    ],
    "testbed": ["privileges", "routes", "namespaces", "wiring", "network"],
    "demo": ["digits", "screen", "story"],
    "cli": [
        "app", "arguments", "plan", "run", "audit", "report", "chaos", "demo", "doctor", "export", "simulate",
        "simulate_fleet", "simulate_step", "simulate_cubes", "testbed", "watch",
    ],
    "simulator": ["network", "fleet", "step", "papers"],
    "simulator/network": ["engine", "network", "views"],
    "simulator/fleet": [
        "chip_hours", "history", "rectangles", "speeds", "policies", "fleet", "sweep", "text", "chart", "cubes",
        "cubes_text", "cubes_chart",
    ],
    "simulator/step": ["models", "hardware", "model_parallel", "update", "step", "run"],
    "simulator/step/models": [
        "layers", "attention", "bert", "convnets", "dlrm", "maskrcnn", "ssd", "transformer",
    ],
    "simulator/papers": ["published", "calibrated", "charts", "dead_host", "recoveries", "failure_costs", "multipod"],
}  # fmt: skip
"""For each folder, its parts from the top down: each may import those before it, and nothing below."""
CONVENIENCE = {
    "mesh/planners/plan.py": {"schedule", "files", "drawing"},
    "mesh/collectives/plan.py": {"schedule", "files", "drawing"},
    "mesh/staged/plan.py": {"schedule"},
    "simulator/network/network.py": {"views"},
}
"""Public values with methods that call downwards, such as plan.draw(): the parts that those may import when called."""
APART = {("job", "simulator"), ("run", "simulator")}
"""Pairs that do not know each other, though one stands above the other."""
HEAVY = {
    "jax": "jax",
    "torch": "torch",
    "mpi4py": "mpi",
    "numba": "kernels",
    "cuda": "cuda",
    "PIL": "image",
    "pyarrow": "tables",
}
"""Libraries that only files of that name may import."""

PURE = {"job/protocol": ["job/protocol"], "job/sharding": ["job/protocol", "job/sharding"]}
"""Folders of pure logic: what they import besides what computes, of Python's own library."""
PURE_LIBRARIES = {"__future__", "bisect", "collections", "dataclasses", "enum", "functools", "itertools", "typing"}

MOST_METHODS = 20
LARGE = {"Job": "the public face: a method per word of the user's script, each of which only checks and passes it on"}
"""Classes that may have more methods, and why."""

SCRIPTS = {"digits.py"}
"""Training scripts, which nothing imports."""


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def public_to_mypy() -> set[str]:
    """The names that mypy and editors find in the package, which are imported when they are first used."""
    tree = ast.parse((SOURCE / "__init__.py").read_text())
    found = {alias.asname for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names}
    found |= {ast.unparse(node.targets[0]) for node in ast.walk(tree) if isinstance(node, ast.Assign)}
    return {name for name in found if name is not None and name.isidentifier()} - {"value"}


def test_public_names() -> None:
    submodules = {path.stem for path in SOURCE.iterdir()}
    names = {name for name in dir(meshmend) if not name.startswith("_")}
    assert names - (submodules - PUBLIC) - {"data", "jax", "torch"} == PUBLIC
    assert {name for name in public_to_mypy() if not name.startswith("_")} - (submodules - PUBLIC) == names - submodules
    assert all(callable(getattr(meshmend, verb)) for verb in ("plan", "verify", "bound"))
    for name in PUBLIC - {"ALGORITHMS", "LINKS", "PRESETS"}:
        assert getattr(meshmend, name).__doc__, f"{name} has no docstring"


def test_the_public_verbs_hide_no_module() -> None:
    verbs = ("plan", "verify", "simulate", "bound", "load", "save")
    assert not set(verbs) & {path.stem for path in SOURCE.iterdir()}
    for verb in verbs:
        assert not isinstance(getattr(meshmend, verb), ModuleType)


def parts(folder: str) -> dict[str, list[Path]]:
    """The modules and packages of a folder, and the files of each."""
    base = SOURCE / folder
    modules = {path.stem: [path] for path in base.glob("*.py") if path.stem != "__init__"}
    return modules | {path.parent.name: [*path.parent.rglob("*.py")] for path in base.glob("*/__init__.py")}


def test_every_package_has_a_law() -> None:
    packages = {str(path.parent.relative_to(SOURCE)) for path in SOURCE.rglob("__init__.py")}
    assert packages - {"."} == LAW.keys() - {""}


@pytest.mark.parametrize("folder", LAW)
def test_the_law_names_every_part_once(folder: str) -> None:
    assert sorted(LAW[folder]) == sorted(parts(folder))


@pytest.mark.parametrize("folder", LAW)
def test_a_part_imports_only_what_stands_above_it(folder: str) -> None:
    """Also inside functions: what an import inside a function hides is a cycle all the same."""
    prefix = ".".join(["meshmend", *folder.split("/"), ""]) if folder else "meshmend."
    order = LAW[folder]
    for part, files in parts(folder).items():
        above = set(order[: order.index(part) + 1])
        for path in files:
            for name in imports(path):
                other = name.removeprefix(prefix).split(".")[0] if name.startswith(prefix) else part
                if other in order and other not in CONVENIENCE.get(str(path.relative_to(SOURCE)), ()):
                    assert other in above and (part, other) not in APART, f"{path.relative_to(SOURCE)} imports {name}"


def test_heavy_libraries_stay_in_files_and_folders_of_their_name() -> None:
    for path in SOURCE.rglob("*.py"):
        for name in imports(path):
            library = name.split(".")[0]
            if library in HEAVY and path.name not in SCRIPTS:
                assert HEAVY[library] in (*path.stem.split("_"), path.parent.name), (
                    f"{path.relative_to(SOURCE)} imports {name}"
                )


def test_no_class_grows_beyond_what_a_reader_holds_in_the_head() -> None:
    """One with more is two ideas, or three: each wants a file of its own."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                methods = [one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
                if len(methods) > MOST_METHODS:
                    found.add(node.name)
                    assert node.name in LARGE, f"{path.relative_to(SOURCE)}: {node.name} has {len(methods)} methods"
    assert found == LARGE.keys(), "an exception that is not needed any more"


@pytest.mark.parametrize("folder", PURE)
def test_pure_folders_know_no_clock_process_or_file(folder: str) -> None:
    pure = [".".join(["meshmend", *other.split("/")]) for other in PURE[folder]]
    for path in (SOURCE / folder).rglob("*.py"):
        for name in imports(path):
            ours = any(name == own or name.startswith(f"{own}.") for own in pure)
            assert ours or name.split(".")[0] in PURE_LIBRARIES, f"{path.relative_to(SOURCE)} imports {name}"


def test_import_is_light() -> None:
    code = "import sys, meshmend, meshmend.cli; print(*sorted(m for m in sys.modules if '.' not in m))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert not {"jax", "torch", "mpi4py", "numba", "scipy", "rustworkx", "matplotlib"} & set(loaded.stdout.split())


def test_a_run_loads_no_simulator_and_a_small_exact_sum_no_compiler() -> None:
    """What a start takes, every worker and every replacement takes."""
    code = """
import sys
from meshmend import cli
cli._load("run")
import numpy as np, meshmend as mm
with mm.Job(np.ones((8, 4), np.float32), batch=8, lanes=4, reduction="exact") as job:
    w = job.share(np.zeros(4, np.float32))
    for step in job.steps(2):
        w = w + job.sum(lambda lane: lane.sum(0))
        job.commit(w)
assert w.tolist() == [16] * 4, w
print(*sys.modules)
"""
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    names = set(loaded.stdout.split())
    assert not {"numba", "meshmend.simulator", "meshmend.testbed"} & names and "meshmend.run.launcher" in names


def test_a_worker_loads_sharded_updates_and_tables_only_when_its_job_uses_them() -> None:
    code = """
import sys
import meshmend.job.worker
import numpy as np, meshmend as mm
with mm.Job(np.ones((8, 4), np.float32), batch=8, lanes=4) as job:
    job.share(np.zeros(4, np.float32))
    print(*sys.modules)
"""
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    unused = ("meshmend.job.sharding", "meshmend.job.slices", "meshmend.job.embeddings", "importlib.metadata")
    assert [name for name in loaded.stdout.split() if name.startswith(unused)] == []


def test_a_courier_loads_no_planner_and_nothing_of_the_worker() -> None:
    """When mpirun dies, all wait until the couriers of the next one have started."""
    code = """
import sys, mpi4py
mpi4py.rc.initialize = False
import meshmend.job.courier.__main__, meshmend.job.courier.courier
print(*sys.modules)
"""
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    names = set(loaded.stdout.split())
    assert not {"meshmend.mesh", "meshmend.simulator", "meshmend.job.job", "meshmend.job.training"} & names
    assert not {"numba", "importlib.metadata", "concurrent.futures"} & names


def test_a_courier_keeps_openblas_to_one_thread_before_it_loads_numpy() -> None:
    """The threads would spin when they begin; once numpy is there, it is too late to say so."""
    code = """
import os, sys, types
from meshmend.job.courier.__main__ import main
def first():
    print("numpy" in sys.modules, os.environ["OPENBLAS_NUM_THREADS"], flush=True)
    os._exit(0)
sys.modules["meshmend.job.signals"] = types.SimpleNamespace(ignore_stops=first)
main(None)
"""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "7"}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=environment)
    assert ran.stdout.split() == ["False", "1"], ran.stderr


@pytest.mark.parametrize("name", ["jax", "torch"])
def test_a_missing_library_is_told_with_what_to_install(name: str) -> None:
    code = f"""
import sys; sys.modules[{name!r}] = None
import meshmend as mm
try:
    mm.{name}
except mm.MissingLibrary as error:
    print(isinstance(error, ImportError), isinstance(error, mm.MeshmendError), "meshmend[{name}]" in str(error))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert ran.stdout.split() == ["True"] * 3, ran.stderr


def commands_of(tree: ast.AST) -> list[list[str]]:
    """What follows `sys.executable` in each command: its texts, as far as they are known."""
    return [
        [str(part.value) if isinstance(part, ast.Constant) else "" for part in node.elts[at + 1 :]]
        for node in ast.walk(tree)
        if isinstance(node, ast.List | ast.Tuple)
        for at, first in enumerate(node.elts)
        if ast.unparse(first) == "sys.executable"
    ]


def test_no_process_of_ours_looks_for_modules_in_the_working_directory() -> None:
    """With `-m` and `-c`, Python looks there first, unless `-P` or `-I` says otherwise."""
    found = {path: commands_of(ast.parse(path.read_text())) for path in SOURCE.rglob("*.py")}
    commands = [(path.name, words) for path, all_words in found.items() for words in all_words]
    assert len(commands) >= 10
    for name, words in commands:
        if {"-m", "-c"} & {*words}:
            assert words[0] in ("-P", "-I"), f"{name}: python {' '.join(words)}"
