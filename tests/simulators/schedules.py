"""Which cases are simulated: every single failure, pairs of failures, and random ones; and how each may end."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from meshmend.base.status import DONE, FAILED, HALTED, MISUSED
from meshmend.run.supervisor import POLICIES
from meshmend.run.supervisor.messages import BadStart, Minority, Stopped, WrongSide
from tests.simulators.faults import ON_HOSTS, ON_RANKS, Fault, Kind
from tests.simulators.ledger import Violation
from tests.simulators.model import Case, spread
from tests.simulators.supervisor import Outcome, simulate

SHAPES = ((2, 1), (3, 1), (4, 1), (2, 2), (3, 2), (4, 2), (3, 3), (4, 3))
"""Workers and hosts."""
LASTING = {
    Kind.SLOW: (0.5, 10.0),
    Kind.STALL: (3.0, 70.0),
    Kind.FULL: (0.0, 1.0, 25.0),
    Kind.HOST: (0.0, 1.0, 25.0),
    Kind.CUT: (0.0, 1.0, 25.0),
    Kind.CUT_MPI: (0.0, 1.0, 25.0),
    Kind.LAUNCHER: (0.5, 35.0),
    Kind.LAUNCHER_STOP: (3.0, 45.0),
    Kind.COURIER_STOP: (0.0, 0.3, 5.0),
    Kind.MPIRUN_STOP: (0.0, 0.3, 5.0),
    Kind.AGENT_STOP: (0.0, 5.0),
    Kind.FREEZE: (2.0, 25.0),
}
"""How long a failure of a kind may last; 0: for ever. The others do not end."""

ENDS: dict[Kind, frozenset[int]] = {
    **dict.fromkeys(Kind, frozenset({DONE})),
    # Before anybody has the state there is nothing to save; after the last step nothing is left to stop.
    Kind.SIGNAL: frozenset({DONE, HALTED, FAILED}),
    # The first world never comes up: a mistake in the set-up, most likely.
    Kind.STALL: frozenset({DONE, MISUSED}),
    Kind.FULL: frozenset({DONE, MISUSED}),
}
"""The table of failures (docs/guide.md) as data: how a run may end that one of these befell, whatever its policy."""

LATER = 80


def bases(jobs: int = 1) -> Iterator[Case]:
    """Runs without failures: every policy and shape."""
    for policy in POLICIES:
        for workers, hosts in SHAPES:
            yield Case(
                policy=policy, workers=workers, hosts=hosts, spares=int(policy == "spare"), jobs=jobs,
                steps=3 if jobs == 1 else 2,
            )  # fmt: skip


def faults_at(case: Case, at: int) -> list[Fault]:
    """Everything that can go wrong at one point: on the launcher's host, an agent and the network do not fail alone."""
    found = []
    for kind in Kind:
        if kind is Kind.ADD:
            continue  # it has schedules of its own: see `new_hosts`
        first = 0 if kind in (Kind.STALL, Kind.FULL) or case.apart else 1
        targets = range(case.workers + case.spares) if kind in ON_RANKS else range(1)
        if kind in ON_HOSTS:
            targets = range(first, case.hosts)
        found += [Fault(kind, at, target, lasts=lasts) for target in targets for lasts in LASTING.get(kind, (0.0,))]
    return found


def singles(stride: int = 1, jobs: int = 1) -> Iterator[Case]:
    """Every single failure, at every so many-th point, and each at another one."""
    number = 0
    for base in bases(jobs):
        for at in range(1, simulate(base).moves + 1):
            for fault in faults_at(base, at):
                number += 1
                if number % stride == 0:
                    yield replace(base, faults=(fault,), seed=number)


def singles_of_sums(stride: int) -> Iterator[Case]:
    """Every single failure of runs whose steps have two sums, at every so many-th point."""
    number = 0
    for base in bases():
        base = replace(base, sums=2, steps=2)
        for at in range(1, simulate(base).moves + 1):
            for fault in faults_at(base, at):
                number += 1
                if number % stride == 0:
                    yield replace(base, faults=(fault,), seed=number)


def pairs(stride: int = 1, seed: int = 1) -> Iterator[Case]:
    """Every ordered pair of failures in every base; every so many-th.

    Each pair has one point in time per seed, at random: the second failure comes up to `LATER` points or 12 seconds
    after the first. All points of all pairs would be 717 million runs.
    """
    number = 0
    for base in bases():
        moves, kinds = simulate(base).moves, faults_at(base, 0)
        for first, second in product(kinds, repeat=2):
            number += 1
            if number % stride == 0:
                dice = random.Random(seed << 32 | number)
                at = dice.randint(1, moves)
                later, after = dice.randrange(LATER), dice.choice([0.0, 0.0, 0.1, 2.0, 12.0])
                faults = replace(first, at=at), replace(second, at=at + later, after=after)
                yield replace(base, faults=faults, seed=number)


def stopped_agents(stride: int = 1, jobs: int = 1) -> Iterator[Case]:
    """An agent is stopped at every so many-th point, and nothing else goes wrong."""
    number = 0
    for base in bases(jobs):
        for at in range(1, simulate(base).moves + 1 if base.hosts > 1 else 1):
            for target in range(1, base.hosts):
                number += 1
                if number % stride == 0:
                    yield replace(base, faults=(Fault(Kind.AGENT_STOP, at, target),), seed=number)


def new_hosts(stride: int = 1, jobs: int = 1) -> Iterator[Case]:
    """A host is added at every point, alone and with everything else that can happen to it or to the others then."""
    number = 0
    for base in bases(jobs):
        if base.hosts == 1:
            continue  # a run without --hosts has no other hosts
        moves = simulate(base).moves
        bigger = replace(base, hosts=base.hosts + 1, workers=base.workers + 2)
        others = [None, *faults_at(bigger, 0)]
        others += [Fault(Kind.ADD, 0, target, lasts=2.0) for target in (base.hosts, base.hosts + 1, 1)]
        for at in range(1, moves + 1):
            for other in others:
                number += 1
                if number % stride:
                    continue
                dice = random.Random(number)
                added = Fault(Kind.ADD, at, base.hosts, lasts=float(dice.choice([1, 2])))
                later, after = dice.randrange(LATER), dice.choice([0.0, 0.0, 0.1, 2.0, 12.0])
                faults = (added,) if other is None else (added, replace(other, at=at + later, after=after))
                yield replace(base, faults=faults, seed=number, steps=dice.choice([3, 60]))


def random_case(seed: int) -> Case:
    """Several failures at once or one after another, in a run of any shape."""
    dice = random.Random(seed)
    policy, (workers, hosts) = dice.choice([*POLICIES]), dice.choice(SHAPES)
    case = Case(
        policy=policy, workers=workers, hosts=hosts, spares=1 if policy == "spare" else dice.choice([0, 0, 1]),
        apart=hosts > 1 and dice.random() < 0.2, least=dice.choice([1, 1, 1, 2]), steps=dice.randint(2, 4),
        exit=dice.choice([0.02, 0.02, 0.02, 3.0]), tail=dice.choice([0.02, 2.0]), load=dice.choice([0.3, 2.0]),
        seed=seed,
    )  # fmt: skip
    sums, in_place = random.Random(f"sums {seed}").choice([(1, False), (1, False), (2, False), (3, False), (2, True)])
    case = replace(case, sums=sums, in_place=in_place)
    faults = []
    for _ in range(dice.choice([1, 1, 2, 2, 3, 4])):
        fault = dice.choice(faults_at(case, dice.randint(1, 160)))
        faults.append(replace(fault, after=dice.choice([0.0] * 4 + [0.01, 0.1, 1.0, 5.0, 15.0])))
    return replace(case, faults=tuple(faults))


def random_jobs(seed: int) -> Case:
    """The same in a run of two jobs, whose points are about twice as many."""
    case = random_case(seed)
    dice = random.Random(~seed)
    return replace(case, jobs=2, faults=tuple(replace(one, at=one.at * dice.choice([1, 2])) for one in case.faults))


def check(outcome: Outcome) -> None:
    """Whether a run ended as promised."""
    case, ledger, status = outcome.case, outcome.ledger, outcome.status
    kinds = {fault.kind for fault in case.faults}
    failures = [fault for fault in case.faults if fault.kind is not Kind.ADD]
    if status == DONE:
        # A script that exits with status 0 between two jobs cannot be told from one that has no second job.
        last = max((job for job, *_ in ledger.written), default=1) if Kind.EXIT in kinds else case.jobs
        wanted = set(product(range(1, last + 1), range(case.steps)))
        missing = wanted - {(job, step) for job, _, step in ledger.written}
        _require(not missing, outcome, f"the run is done, but steps {sorted(missing)} are not written down")
    if status == HALTED:
        _require(outcome.reason is not None, outcome, "the run halted for no reason")
        newest, last = max(ledger.saved, default=(0, -1)), ledger.last(outcome.model.attempt)
        whole = newest > last or isinstance(outcome.reason, (Minority, WrongSide))
        _require(whole, outcome, f"step {last} is written down, but the last checkpoint is of {newest}")
    if status == FAILED:
        # After the last step there is nothing to continue, even where somebody lives who was left out of it.
        complete = ledger.last(outcome.model.attempt) == (case.jobs, case.steps - 1)
        fine = may_fail(case) or outcome.model.raised_after_job or not ledger.written or case.tail_status or complete
        if isinstance(outcome.reason, BadStart):
            fine = kinds & {Kind.EXIT, Kind.RAISE}
        # Who is halted within a step, and has no state from before it, must finish the step, if that is possible.
        fine = fine or (case.in_place and outcome.model.halt is not None)
        _require(fine, outcome, "the run failed, but some worker could have continued")
    if status == MISUSED:
        _require(kinds & {Kind.STALL, Kind.MPIRUN, *ON_HOSTS}, outcome, "nobody misused anything")
    if kinds == {Kind.ADD}:
        _require(status == DONE, outcome, "nothing failed")
    if len(failures) == 1 and case.least == 1 and not case.apart:
        promised = ENDS[failures[0].kind] | ({FAILED} if outcome.model.raised_after_job else set())
        if isinstance(outcome.reason, BadStart):
            promised = {FAILED}
        if isinstance(outcome.reason, Stopped):
            promised = {HALTED}
        _require(status in promised, outcome, f"status {status} is not what is promised")


def may_fail(case: Case) -> bool:
    """Whether so much was struck that nobody may be left who can save a checkpoint."""
    struck: set[int] = set()
    for fault in case.faults:
        if fault.kind in ON_RANKS:
            struck.add(fault.target)
        elif fault.kind in ON_HOSTS and fault.kind not in (Kind.STALL, Kind.FULL):
            struck |= {rank for rank, host in enumerate(spread(case)) if host == f"h{fault.target}"}
    kinds = {fault.kind for fault in case.faults}
    # Three attempts that get no further than the checkpoint before them are enough, and a cut of mpirun's network ends
    # two: the one that it breaks, and the next, in which it is found to be cut.
    attempts = len(case.faults) + len(kinds & {Kind.CUT, Kind.CUT_MPI})
    often = case.policy == "checkpoint" and (attempts > 2 or Kind.STALL in kinds)
    hurried = Kind.SIGNAL in kinds and len(case.faults) > 1
    return len(struck) >= min(case.workers, case.workers + case.spares - 1) or hurried or often


def _require(fine: object, outcome: Outcome, what: str) -> None:
    if not fine:
        raise Violation(f"{what} (status {outcome.status}, {outcome.reason})\n{outcome.model.story()}")
