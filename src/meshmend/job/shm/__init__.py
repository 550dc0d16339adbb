"""The memory that a worker, its courier and its agent share.

`words.py` defines what a record is made of, `records.py` who writes what, and `mailbox.py` draws the handshakes.
`home.py` says where the memory is, and `presence.py` how long it lives.
"""

from meshmend.job.shm.files import ranks_of as ranks_of
from meshmend.job.shm.files import remove_worlds as remove_worlds
from meshmend.job.shm.files import world_folder as world_folder
from meshmend.job.shm.files import worlds_of as worlds_of
from meshmend.job.shm.home import MEMORY as MEMORY
from meshmend.job.shm.presence import clean_stale as clean_stale
from meshmend.job.shm.presence import enter as enter
from meshmend.job.shm.presence import leave as leave
from meshmend.job.shm.presence import manage as manage
from meshmend.job.shm.presence import stale_runs as stale_runs
from meshmend.job.shm.presence import was_removed as was_removed
from meshmend.job.shm.segment import AgentSegment as AgentSegment
from meshmend.job.shm.segment import CourierSegment as CourierSegment
from meshmend.job.shm.segment import Segment as Segment
from meshmend.job.shm.segment import WorkerSegment as WorkerSegment
from meshmend.job.shm.segment import create_as_agent as create_as_agent
from meshmend.job.shm.segment import open_as_agent as open_as_agent
from meshmend.job.shm.segment import open_as_courier as open_as_courier
from meshmend.job.shm.segment import open_as_worker as open_as_worker
from meshmend.job.shm.segment import open_to_read as open_to_read
