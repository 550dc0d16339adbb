"""What follows a death, a hang or a lost host: pure decisions. See decide.py."""

from meshmend.run.supervisor.decide import decide as decide
from meshmend.run.supervisor.policies import POLICIES as POLICIES
from meshmend.run.supervisor.state import Phase as Phase
from meshmend.run.supervisor.state import RunConfig as RunConfig
from meshmend.run.supervisor.state import RunState as RunState
