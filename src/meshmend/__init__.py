"""meshmend keeps data-parallel training running when chips and workers die.

mesh ──► plan ──► verify ──► simulate, execute: what exists, the best all-reduce round the hole, its proof, what it
would cost, and running it.
"""

import typing as _typing
from importlib import import_module as _import_module

from meshmend import testing as testing
from meshmend.errors import Disconnected as Disconnected
from meshmend.errors import FormatError as FormatError
from meshmend.errors import JobError as JobError
from meshmend.errors import MeshError as MeshError
from meshmend.errors import MeshmendError as MeshmendError
from meshmend.errors import NoRing as NoRing
from meshmend.errors import PictureError as PictureError
from meshmend.errors import PlanError as PlanError
from meshmend.errors import SimulateError as SimulateError
from meshmend.errors import VerifyError as VerifyError
from meshmend.execute import local as local
from meshmend.mesh import PRESETS as PRESETS
from meshmend.mesh import Mesh as Mesh
from meshmend.plan import ALGORITHMS as ALGORITHMS
from meshmend.plan import LINKS as LINKS
from meshmend.plan import Bound as Bound
from meshmend.plan import Flow as Flow
from meshmend.plan import LinkSpeed as LinkSpeed
from meshmend.plan import Plan as Plan
from meshmend.plan import Schedule as Schedule
from meshmend.plan import bound as bound
from meshmend.plan import load as load
from meshmend.plan import plan as plan
from meshmend.plan import save as save
from meshmend.simulate import simulate as simulate
from meshmend.train import Job as Job
from meshmend.verify import verify as verify

if _typing.TYPE_CHECKING:
    from meshmend.execute import jax as jax
    from meshmend.train import torch as torch

_LAZY = {"jax": "meshmend.execute.jax", "torch": "meshmend.train.torch"}
"""Parts that need a library which not everybody has: imported when they are first asked for."""


def __getattr__(name: str) -> _typing.Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'meshmend' has no attribute {name!r}")
    try:
        return _import_module(_LAZY[name])
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise MeshmendError(f"meshmend.{name} needs {name}: pip install 'meshmend[{name}]'") from None
