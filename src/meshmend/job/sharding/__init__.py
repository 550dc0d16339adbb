"""Updates shared between members, as pure logic: who holds which slice, and a round in which holders may die."""

from meshmend.job.sharding.placement import placed as placed
from meshmend.job.sharding.plan import Fill as Fill
from meshmend.job.sharding.plan import Holdings as Holdings
from meshmend.job.sharding.plan import RoundPlan as RoundPlan
from meshmend.job.sharding.plan import plan_round as plan_round
from meshmend.job.sharding.slices import Slicing as Slicing
from meshmend.job.sharding.slices import cut as cut
