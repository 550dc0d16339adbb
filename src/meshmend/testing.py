"""For tests of training scripts: failures at a chosen point.

``with mm.testing.fail_at(rank=2, step=7, point="allreduce"): subprocess.run(["meshmend", "run", "-n", "4", …])``
"""

from meshmend.job.faults import Fault as Fault
from meshmend.job.faults import fail_at as fail_at
