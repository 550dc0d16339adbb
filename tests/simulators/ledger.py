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
    job: int
    step: int
    key: tuple[int, int]
    """The sum it was made from."""
    members: tuple[int, ...]
    counts: tuple[int, ...]
    """How often each lane was counted, sum after sum."""
    state: int


def truth(steps: int, lanes: int, sums: int = 1, begin: int = 0) -> list[int]:
    """The state before each step, and after the last, of an undisturbed job."""
    states = [begin]
    for step in range(steps):
        state = states[-1]
        for turn in range(sums):
            state = mix(state, sum(mix(state, step, turn, lane) for lane in range(lanes)) & MASK)
        states.append(state)
    return states


def truths(jobs: int, steps: int, lanes: int, sums: int = 1) -> dict[int, list[int]]:
    """The same for the jobs of a script, from 1; each begins with the state that the one before it has left."""
    found = {1: truth(steps, lanes, sums)}
    for job in range(2, jobs + 1):
        found[job] = truth(steps, lanes, sums, mix(found[job - 1][-1], job))
    return found


@dataclass
class Ledger:
    """The files of a run: steps and checkpoints."""

    truth: dict[int, list[int]]
    """By job."""
    written: dict[tuple[int, int, int], Commit] = field(default_factory=dict)
    """The steps of each job and attempt that are known to be everybody's."""
    saved: list[tuple[int, int]] = field(default_factory=list)
    """The job and the step of each checkpoint."""

    def check(self, commit: Commit) -> None:
        """A worker has taken the totals of a step."""
        if any(count != 1 for count in commit.counts):
            raise Violation(f"step {commit.step}: lanes were counted {commit.counts} times")
        if commit.state != self.truth[commit.job][commit.step + 1]:
            raise Violation(f"the state after step {commit.step} is wrong")

    def write(self, commit: Commit, *, apart: bool = False) -> None:
        """A step is written down.

        The smaller side of a broken network (`apart`), and whoever is cut off from the launcher, write down the step
        that they have the total of when they are stopped, and save the state after it. They cannot know whether the
        other side, which lacked that total, did it again.
        """
        self.check(commit)
        before = self.written.setdefault((commit.job, commit.attempt, commit.step), commit)
        if before.key != commit.key and not apart:
            raise Violation(
                f"step {commit.step} was committed twice, by workers {before.members} and by workers {commit.members}"
            )

    def save(self, job: int, step: int, state: int) -> None:
        """A checkpoint is written."""
        if state != self.truth[job][step]:
            raise Violation(f"the checkpoint of {step} steps of job {job} is wrong")
        self.saved.append((job, step))

    @property
    def checkpoints(self) -> list[int]:
        """The steps of all checkpoints."""
        return [step for _, step in self.saved]

    @property
    def latest(self) -> str:
        """The newest checkpoint, "" where there is none: the file's name has its step, its folder the job."""
        job, step = max(self.saved, default=(0, 0))
        return f"{job}/{step}" if job else ""

    def last(self, attempt: int = 0) -> tuple[int, int]:
        """The job and the last step that an attempt has written down; (0, -1) where there is none."""
        return max(((job, step) for job, of, step in self.written if of == attempt), default=(0, -1))

    def last_step(self, attempt: int = 0) -> int:
        """The last step that an attempt has written down, in its last job; -1 where there is none."""
        return self.last(attempt)[1]
