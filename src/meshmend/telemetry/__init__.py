"""What happened in a run: typed events, one JSON line each, their writer and their readers.

    runs/RUN/run.json               the options of the run, and the format of everything in this folder
    runs/RUN/events/launcher.jsonl  one file per writer, so that no lock is needed, not even on a shared file system
    runs/RUN/events/worker-0.jsonl
    runs/RUN/events/worker-0.0001.jsonl, …   when a file is full, the next one; full files are compacted
    runs/RUN/events/courier-0.jsonl …

Everything that reports on a run reads these files and nothing else. Every event carries the epoch number
(`Epoch`: attempt, world, shrink) of the membership it was seen in, so events of different writers can be put together
without trusting their clocks. The **ledger** is the `Committed`, `Skipped` and `Evaluated` events of all
workers, and `Steps`, which stand for many of them; the lines of any one survivor suffice, since each line accounts for
all workers.
"""

from meshmend.telemetry.epoch import Epoch as Epoch
from meshmend.telemetry.folder import FORMAT as FORMAT
from meshmend.telemetry.folder import NO_ROOM as NO_ROOM
from meshmend.telemetry.folder import PASSING as PASSING
from meshmend.telemetry.folder import Log as Log
from meshmend.telemetry.folder import Patience as Patience
from meshmend.telemetry.folder import always as always
from meshmend.telemetry.folder import check_format as check_format
from meshmend.telemetry.folder import check_name as check_name
from meshmend.telemetry.folder import damaged as damaged
from meshmend.telemetry.folder import folder_of as folder_of
from meshmend.telemetry.folder import opened as opened
from meshmend.telemetry.folder import own as own
from meshmend.telemetry.folder import read_description as read_description
from meshmend.telemetry.folder import unwritable as unwritable
from meshmend.telemetry.reader import Events as Events
from meshmend.telemetry.reader import Follower as Follower
from meshmend.telemetry.reader import follow as follow
from meshmend.telemetry.reader import read as read
from meshmend.telemetry.reader import steps_done as steps_done
from meshmend.telemetry.steps import Steps as Steps
from meshmend.telemetry.types import UNKNOWN as UNKNOWN
from meshmend.telemetry.types import Began as Began
from meshmend.telemetry.types import Committed as Committed
from meshmend.telemetry.types import Component as Component
from meshmend.telemetry.types import Died as Died
from meshmend.telemetry.types import Differed as Differed
from meshmend.telemetry.types import Ended as Ended
from meshmend.telemetry.types import Evaluated as Evaluated
from meshmend.telemetry.types import Event as Event
from meshmend.telemetry.types import Formed as Formed
from meshmend.telemetry.types import Halting as Halting
from meshmend.telemetry.types import How as How
from meshmend.telemetry.types import Opened as Opened
from meshmend.telemetry.types import Raised as Raised
from meshmend.telemetry.types import Repaired as Repaired
from meshmend.telemetry.types import Saved as Saved
from meshmend.telemetry.types import SingleCopies as SingleCopies
from meshmend.telemetry.types import Skipped as Skipped
from meshmend.telemetry.types import Started as Started
from meshmend.telemetry.types import Struck as Struck
from meshmend.telemetry.types import Why as Why
from meshmend.telemetry.types import parse as parse
