"""meshmend keeps data-parallel training running when chips and workers die.

mesh ──► plan ──► verify ──► simulate, execute: what exists, the best all-reduce round the hole, its proof, what it
would cost, and running it.
"""

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
