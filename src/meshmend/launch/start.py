"""Three ways to have a run: begin it, go on with it from a checkpoint, or take over from a launcher that was killed."""

from __future__ import annotations

from meshmend.errors import JobError
from meshmend.events import Began, read
from meshmend.launch.doctor import require_tolerance
from meshmend.launch.launcher import Launcher
from meshmend.launch.order import Order
from meshmend.train.checkpoint import latest
from meshmend.train.processes import lives
from meshmend.train.segment import Segment, seats_of


def launch(order: Order) -> int:
    """Begin a run; the exit status is 0 if the job was done."""
    if (order.folder / "run.json").exists():
        raise JobError(
            f"{order.folder} holds a run of that name: go on with --resume {order.run}, or give another --name"
        )
    require_tolerance()
    launcher = Launcher(order)
    launcher.reach()
    order.save()
    return launcher.run()


def resume(order: Order) -> int:
    """Go on with a run from its last checkpoint, in new processes; one that has not begun yet begins."""
    if not (order.folder / "run.json").exists():
        return launch(order)
    _nobody_has(order)
    require_tolerance()
    begun = [event for event in read(order.folder) if isinstance(event, Began)]
    checkpoint = latest(order.folder / "checkpoints")
    launcher = Launcher(order, life=max((e.life for e in begun), default=-1) + 1, resume=str(checkpoint or ""))
    launcher.speaker.say(f"resuming from {checkpoint.name if checkpoint else 'the beginning: there is no checkpoint'}")
    launcher.reach()
    return launcher.run()


def attach(order: Order) -> int:
    """Go on with a run whose launcher was killed, with the workers that live."""
    _nobody_has(order)
    if not any(_worker_lives(order.run, seat) for seat in seats_of(order.run)) and not order.hosts:
        raise JobError(f"run {order.run!r} has no living workers here: go on with --resume {order.run}")
    begun = [event for event in read(order.folder) if isinstance(event, Began)]
    launcher = Launcher(order, life=max((event.life for event in begun), default=0))
    launcher.reach(attached=True)
    return launcher.run(attached=True)


def _nobody_has(order: Order) -> None:
    for seat in seats_of(order.run):
        owner = Segment(order.run, seat)["owner"]
        if lives(owner):
            raise JobError(f"run {order.run!r} is in the hands of process {owner}: end that first")


def _worker_lives(run: str, seat: int) -> bool:
    segment = Segment(run, seat)
    return lives(segment["worker"], segment["born"])
