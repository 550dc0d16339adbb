"""From a mesh with a hole to the best all-reduce round it."""

from meshmend.mesh.planners.bound import Bound as Bound
from meshmend.mesh.planners.bound import bound as bound
from meshmend.mesh.planners.cost import LINKS as LINKS
from meshmend.mesh.planners.cost import LinkSpeed as LinkSpeed
from meshmend.mesh.planners.cost import seconds as seconds
from meshmend.mesh.planners.files import load as load
from meshmend.mesh.planners.files import save as save
from meshmend.mesh.planners.plan import Flow as Flow
from meshmend.mesh.planners.plan import Plan as Plan
