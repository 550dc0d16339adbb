"""The public names, who may import whom, and that importing meshmend is light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import meshmend

SOURCE = Path(meshmend.__file__).parent
PUBLIC = {
    "ALGORITHMS", "Bound", "Disconnected", "Flow", "FormatError", "LINKS", "LinkSpeed", "Mesh", "MeshError",
    "MeshmendError", "NoRing", "PRESETS", "Plan", "Job",
    "JobError", "PlanError", "Schedule", "VerifyError", "bound", "load", "local",
    "plan", "save", "simulate", "verify", "PictureError", "SimulateError",
}  # fmt: skip
LAYERS = [
    "errors",
    "units",
    "jit",
    "events",
    "paint",
    "mesh",
    "plan",
    "verify",
    "simulate",
    "execute",
    "train",
    "testing",
    "report",
    "launch",
    "testbed",
    "demo",
    "cli",
]
"""Each may import those before it, but `execute` does not know `simulate`: they stand side by side."""
HEAVY = {"jax": "jax", "torch": "torch", "mpi4py": "mpi", "numba": "jit"}
"""Libraries that only files of that name may import."""

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


def test_public_names() -> None:
    submodules = {path.stem for path in SOURCE.iterdir()}
    names = {name for name in vars(meshmend) if not name.startswith("_")}
    assert names - (submodules - PUBLIC) == PUBLIC
    assert all(callable(getattr(meshmend, verb)) for verb in ("plan", "verify", "bound"))
    for name in PUBLIC - {"ALGORITHMS", "LINKS", "PRESETS"}:
        assert getattr(meshmend, name).__doc__, f"{name} has no docstring"


def test_a_folder_imports_only_folders_above_it() -> None:
    for path in SOURCE.rglob("*.py"):
        layer = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        if layer in ("__init__", "__main__"):
            continue
        above = {*LAYERS[: LAYERS.index(layer) + 1]} - ({"simulate"} if layer == "execute" else set())
        for name in imports(path):
            parts = name.split(".")
            if parts[0] == "meshmend" and len(parts) > 1 and parts[1] in LAYERS:
                assert parts[1] in above, f"{path.relative_to(SOURCE)} imports {name}"


def test_heavy_libraries_stay_in_files_and_folders_of_their_name() -> None:
    for path in SOURCE.rglob("*.py"):
        for name in imports(path):
            library = name.split(".")[0]
            if library in HEAVY and path.name not in SCRIPTS:
                assert HEAVY[library] in (path.stem, path.parent.name), f"{path.relative_to(SOURCE)} imports {name}"


def test_import_is_light() -> None:
    code = "import sys, meshmend, meshmend.cli; print(*sorted(m for m in sys.modules if '.' not in m))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert not {"jax", "torch", "mpi4py", "numba", "scipy", "rustworkx", "matplotlib"} & set(loaded.stdout.split())


def test_a_missing_library_is_told_with_what_to_install() -> None:
    code = "import sys; sys.modules['torch'] = None; import meshmend as mm; mm.torch"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "ImportError: mm.torch needs PyTorch: pip install 'meshmend[torch]'" in ran.stderr
