"""What workers write down, checked at once: every lane of every step once, one total per step, the right state."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.simulators.ulfm import MASK, mix


class Violation(AssertionError):
    """Something happened that must never happen."""


@dataclass(frozen=True)
class Commit:
    """A step that is done."""

    attempt: int
    step: int
    key: tuple[int, int]
    """The sum it was made from."""
    members: tuple[int, ...]
    counts: tuple[int, ...]
    state: int


def truth(steps: int, lanes: int) -> list[int]:
    """The state before each step, and after the last, of an undisturbed run."""
    states = [0]
    for step in range(steps):
        payload = sum(mix(states[-1], step, lane) for lane in range(lanes)) & MASK
        states.append(mix(states[-1], payload))
    return states


@dataclass
class Ledger:
    """The files of a run: steps and checkpoints."""

    truth: list[int]
    written: dict[tuple[int, int], Commit] = field(default_factory=dict)
    """The steps of each attempt that are known to be everybody's."""
    checkpoints: list[int] = field(default_factory=list)

    def check(self, commit: Commit) -> None:
        """A worker has taken a total."""
        if any(count != 1 for count in commit.counts):
            raise Violation(f"step {commit.step}: lanes were counted {commit.counts} times")
        if commit.state != self.truth[commit.step + 1]:
            raise Violation(f"the state after step {commit.step} is wrong")

    def write(self, commit: Commit, *, apart: bool = False) -> None:
        """A step is written down.

        The smaller side of a broken network (`apart`), and whoever is cut off from the launcher, write down the step
        that they have the total of when they are stopped, and save the state after it. They cannot know whether the
        other side, which lacked that total, did it again.
        """
        self.check(commit)
        before = self.written.setdefault((commit.attempt, commit.step), commit)
        if before.key != commit.key and not apart:
            raise Violation(
                f"step {commit.step} was committed twice, by workers {before.members} and by workers {commit.members}"
            )

    def save(self, step: int, state: int) -> None:
        """A checkpoint is written."""
        if state != self.truth[step]:
            raise Violation(f"the checkpoint of {step} steps is wrong")
        self.checkpoints.append(step)

    @property
    def latest(self) -> str:
        """The newest checkpoint, "" where there is none: the file's name has its step."""
        return f"step-{max(self.checkpoints)}" if self.checkpoints else ""

    def last_step(self, attempt: int = 0) -> int:
        """The last step that an attempt has written down; -1 where there is none."""
        return max((step for of, step in self.written if of == attempt), default=-1)
