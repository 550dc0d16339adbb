"""From a mesh with a hole to the best all-reduce round it."""

from meshmend.plan.bound import Bound as Bound
from meshmend.plan.bound import bound as bound
from meshmend.plan.choose import ALGORITHMS as ALGORITHMS
from meshmend.plan.choose import plan as plan
from meshmend.plan.cost import LINKS as LINKS
from meshmend.plan.cost import LinkSpeed as LinkSpeed
from meshmend.plan.cost import seconds as seconds
from meshmend.plan.files import load as load
from meshmend.plan.files import save as save
from meshmend.plan.flow import Flow as Flow
from meshmend.plan.flow import Plan as Plan
from meshmend.plan.schedule import Schedule as Schedule
from meshmend.plan.schedule import schedule as schedule
