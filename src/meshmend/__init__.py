"""meshmend keeps training running when chips and workers die.

mesh ──► plan ──► verify ──► simulate, execute: what exists, the best all-reduce around the hole, its proof, what it
would cost, and running it.
"""

import typing as _typing
from importlib import import_module as _import_module

from meshmend.errors import Disconnected as Disconnected
from meshmend.errors import FormatError as FormatError
from meshmend.errors import JobError as JobError
from meshmend.errors import MeshError as MeshError
from meshmend.errors import MeshmendError as MeshmendError
from meshmend.errors import MissingLibrary as MissingLibrary
from meshmend.errors import NoRing as NoRing
from meshmend.errors import NotFinite as NotFinite
from meshmend.errors import PictureError as PictureError
from meshmend.errors import PlanError as PlanError
from meshmend.errors import SimulateError as SimulateError
from meshmend.errors import VerifyError as VerifyError

if _typing.TYPE_CHECKING:
    from meshmend import testing as testing
    from meshmend.job import data as data
    from meshmend.job.embeddings.optimizers import RowOptimizer as RowOptimizer
    from meshmend.job.embeddings.optimizers import row_adagrad as row_adagrad
    from meshmend.job.embeddings.optimizers import row_sgd as row_sgd
    from meshmend.job.embeddings.tables import EmbeddingTables as EmbeddingTables
    from meshmend.job.first import on_first as on_first
    from meshmend.job.frameworks import torch as torch
    from meshmend.job.job import Job as Job
    from meshmend.job.loading import load_checkpoint as load_checkpoint
    from meshmend.job.slices.large_batch import WarmupDecay as WarmupDecay
    from meshmend.job.slices.large_batch import lamb as lamb
    from meshmend.job.slices.large_batch import lars as lars
    from meshmend.job.slices.optimizers import clipped as clipped
    from meshmend.job.slices.optimizers import optimizer as optimizer
    from meshmend.mesh import PRESETS as PRESETS
    from meshmend.mesh import Fabric as Fabric
    from meshmend.mesh import Graph as Graph
    from meshmend.mesh import Mesh as Mesh
    from meshmend.mesh.choose import plan as plan
    from meshmend.mesh.collectives import COLLECTIVES as COLLECTIVES
    from meshmend.mesh.collectives import CollectivePlan as CollectivePlan
    from meshmend.mesh.collectives import CollectiveSchedule as CollectiveSchedule
    from meshmend.mesh.collectives import CutBound as CutBound
    from meshmend.mesh.collectives import Tile as Tile
    from meshmend.mesh.collectives import tile as tile
    from meshmend.mesh.executors import jax as jax
    from meshmend.mesh.executors import reference as _reference
    from meshmend.mesh.files import load as load
    from meshmend.mesh.files import save as save
    from meshmend.mesh.planners import ALGORITHMS as ALGORITHMS
    from meshmend.mesh.planners import LINKS as LINKS
    from meshmend.mesh.planners import Bound as Bound
    from meshmend.mesh.planners import Flow as Flow
    from meshmend.mesh.planners import LinkSpeed as LinkSpeed
    from meshmend.mesh.planners import Plan as Plan
    from meshmend.mesh.planners import bound as bound
    from meshmend.mesh.planners import spread_roots as spread_roots
    from meshmend.mesh.proof import Proof as Proof
    from meshmend.mesh.proof import verify as verify
    from meshmend.mesh.schedule import Schedule as Schedule
    from meshmend.simulator import simulate as simulate

    local = _reference

_NAMES = {
    "job.embeddings.optimizers": ("RowOptimizer", "row_adagrad", "row_sgd"),
    "job.embeddings.tables": ("EmbeddingTables",),
    "job.first": ("on_first",),
    "job.job": ("Job",),
    "job.loading": ("load_checkpoint",),
    "job.slices.large_batch": ("WarmupDecay", "lamb", "lars"),
    "job.slices.optimizers": ("clipped", "optimizer"),
    "mesh": ("Fabric", "Graph", "Mesh", "PRESETS"),
    "mesh.choose": ("plan",),
    "mesh.collectives": ("COLLECTIVES", "CollectivePlan", "CollectiveSchedule", "CutBound", "Tile", "tile"),
    "mesh.files": ("load", "save"),
    "mesh.planners": (
        "ALGORITHMS",
        "Bound",
        "Flow",
        "LINKS",
        "LinkSpeed",
        "Plan",
        "bound",
        "spread_roots",
    ),
    "mesh.proof": ("Proof", "verify"),
    "mesh.schedule": ("Schedule",),
    "simulator": ("simulate",),
}
"""Where the public names are. They are imported on first use: a courier needs few of them, and every run waits for
its couriers to start when mpirun dies."""
_MODULES = {
    "testing": "testing",
    "data": "job.data",
    "local": "mesh.executors.reference",
    "jax": "mesh.executors.jax",
    "torch": "job.frameworks.torch",
}
_LIBRARIES = {"jax": "JAX", "torch": "PyTorch"}
"""Optional libraries that a module of the same name needs."""


def __getattr__(name: str) -> _typing.Any:
    for place, names in _NAMES.items():
        if name in names:
            value = globals()[name] = getattr(_import_module(f"meshmend.{place}"), name)
            return value
    if name not in _MODULES:
        raise AttributeError(f"module 'meshmend' has no attribute {name!r}")
    try:
        return _import_module(f"meshmend.{_MODULES[name]}")
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise MissingLibrary(
            f"mm.{name} needs {_LIBRARIES[name]}, which is not installed; run pip install 'meshmend[{name}]'"
        ) from None


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, *(name for names in _NAMES.values() for name in names)})
