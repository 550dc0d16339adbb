"""Collectives other than an all-reduce over all chips, and all-reduces in groups."""

from meshmend.mesh.collectives.bounds import CutBound as CutBound
from meshmend.mesh.collectives.collective import ALL_REDUCE as ALL_REDUCE
from meshmend.mesh.collectives.collective import COLLECTIVES as COLLECTIVES
from meshmend.mesh.collectives.groups import Tile as Tile
from meshmend.mesh.collectives.groups import tile as tile
from meshmend.mesh.collectives.plan import CollectivePlan as CollectivePlan
from meshmend.mesh.collectives.planner import plan_collective as plan_collective
from meshmend.mesh.collectives.schedule import CollectiveSchedule as CollectiveSchedule
