"""Updates shared between members, as pure logic: who holds which slice, and a round in which holders may die."""

from meshmend.job.sharding.copies import check_copies as check_copies
from meshmend.job.sharding.member import run_sharded_member as run_sharded_member
from meshmend.job.sharding.operations import Compare as Compare
from meshmend.job.sharding.operations import Give as Give
from meshmend.job.sharding.operations import Measure as Measure
from meshmend.job.sharding.operations import Meet as Meet
from meshmend.job.sharding.operations import Prepare as Prepare
from meshmend.job.sharding.operations import Scatter as Scatter
from meshmend.job.sharding.operations import ShardedOperation as ShardedOperation
from meshmend.job.sharding.operations import ShardedSteps as ShardedSteps
from meshmend.job.sharding.operations import Update as Update
from meshmend.job.sharding.placement import placed as placed
from meshmend.job.sharding.plan import Fill as Fill
from meshmend.job.sharding.plan import Holdings as Holdings
from meshmend.job.sharding.plan import RoundPlan as RoundPlan
from meshmend.job.sharding.plan import plan_round as plan_round
from meshmend.job.sharding.records import ShardedRecord as ShardedRecord
from meshmend.job.sharding.records import ShardedState as ShardedState
from meshmend.job.sharding.recovery import Sharding as Sharding
from meshmend.job.sharding.slices import Slicing as Slicing
from meshmend.job.sharding.slices import cut as cut
