"""A proof covers the very plan or schedule that was verified, cannot be forged, and executors ask for it."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest

from meshmend import Proof, Schedule, VerifyError, local, plan, verify
from meshmend.mesh import proof as module
from meshmend.mesh.executors.base import Executor
from meshmend.mesh.executors.reference import Reference


def made(text: str = "4x4 -chip@1,1", chunks: int = 12) -> Schedule:
    return plan(text, algorithm="trees").schedule(chunks)


def wrong(schedule: Schedule) -> Schedule:
    """The same without its last transfer."""
    return replace(schedule, **{name: getattr(schedule, name)[:-1] for name in ("slot", "link", "chunk", "copy")})


def test_a_proof_covers_what_was_verified_and_nothing_else() -> None:
    schedule = made()
    proof = verify(schedule)
    assert proof.kind == "schedule" and not proof.attested and schedule.digest.hex() in repr(proof)
    assert proof.covers(schedule) and proof.covers(made()), "an equal schedule has the same proof"
    plan_proof = verify(plan("4x4 -chip@1,1", algorithm="trees"))
    assert plan_proof.kind == "plan" and plan_proof.covers(plan("4x4 -chip@1,1", algorithm="trees"))
    assert not plan_proof.covers(schedule) and not proof.covers(plan("4x4 -chip@1,1"))
    others = [made("4x4"), made(chunks=13), replace(schedule, hop=2), wrong(schedule)]
    others.append(replace(schedule, mesh=schedule.mesh.fail("-link@3,2:3,3")))
    others.append(replace(schedule, copy=~schedule.copy))
    others.append(replace(schedule, slot=schedule.slot.astype(np.int64)))
    assert not any(proof.covers(other) for other in others)
    assert len({other.digest for other in [schedule, *others]}) == len(others) + 1


def test_what_was_proved_cannot_change() -> None:
    schedule, whole = made(), plan("4x4", algorithm="trees")
    for array in (schedule.slot, schedule.link, schedule.chunk, schedule.copy, whole.share, whole.up, whole.down):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_a_proof_cannot_be_forged() -> None:
    schedule = wrong(made())
    real = verify(made())
    for forge in (
        lambda: Proof(),
        lambda: Proof("schedule", schedule.digest),
        lambda: Proof(digest=schedule.digest),
        lambda: copy.copy(real),
        lambda: copy.deepcopy(real),
        lambda: pickle.dumps(real),
    ):
        with pytest.raises(TypeError):
            forge()
    with pytest.raises(AttributeError):
        real.digest = schedule.digest
    forged = object.__new__(Proof)
    for name, value in (("kind", "schedule"), ("digest", schedule.digest), ("attested", False)):
        object.__setattr__(forged, name, value)
    assert not forged.covers(schedule)
    with pytest.raises(VerifyError):
        Executor(schedule, forged)


def test_a_wrong_schedule_is_proved_by_nobody_and_run_by_nobody() -> None:
    schedule = wrong(made())
    for attempt in (verify, Executor, lambda one: local.allreduce(one, np.ones((15, 12)))):
        with pytest.raises(VerifyError) as caught:
            attempt(schedule)
        assert caught.value.chunk is not None


def test_an_executor_takes_the_proof_of_its_own_schedule_only() -> None:
    schedule, other = made(), made("4x4")
    proof = verify(schedule)
    assert Reference(schedule, proof).proof is proof
    assert Reference(schedule).proof.covers(schedule)
    with pytest.raises(VerifyError) as caught:
        Reference(other, proof)
    assert other.digest.hex() in str(caught.value) and proof.digest.hex() in str(caught.value)
    parts = np.arange(15 * 12).reshape(15, 12)
    assert np.array_equal(local.allreduce(schedule, parts, proof=proof)[0], parts.sum(0))


def test_a_schedule_is_proved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(module, "verify_schedule", asked.append)
    monkeypatch.setattr(module, "_KNOWN", type(module._KNOWN)())
    schedule = made(chunks=17)
    for _ in range(5):
        local.allreduce(schedule, np.ones((15, 3)))
        verify(made(chunks=17))
    assert asked == [schedule]
    for chunks in range(20, 20 + module.REMEMBERED):
        verify(made("2x2", chunks))
    assert len(module._KNOWN) == module.REMEMBERED
    verify(schedule)
    assert asked.count(schedule) == 2


def test_a_receiver_compares_digests_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "verify_schedule", lambda _: pytest.fail("a receiver proves nothing itself"))
    sent = made(chunks=18)
    table = np.stack([sent.slot, sent.link, sent.chunk, sent.copy])
    got = Schedule(sent.mesh, sent.chunks, sent.hop, table[0], table[1], table[2], table[3].astype(bool))
    proof = Proof.from_peer(sent.digest, got)
    assert proof.attested and proof.covers(got) and Executor(got, proof).proof is proof
    with pytest.raises(VerifyError) as caught:
        Proof.from_peer(sent.digest, wrong(got))
    assert sent.digest.hex() in str(caught.value)
