"""All-reduces in stages, in which many chips sum for themselves: less latency than any tree there and back."""

from meshmend.mesh.staged.plan import StagedFlow as StagedFlow
from meshmend.mesh.staged.plan import StagedPlan as StagedPlan
from meshmend.mesh.staged.schedule import StagedSchedule as StagedSchedule
from meshmend.mesh.staged.schedule import schedule as schedule
from meshmend.mesh.staged.spaced import best_staged as best_staged
from meshmend.mesh.staged.spaced import staged as staged
