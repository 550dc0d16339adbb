"""What workers tell each other besides sums: the pieces of it, without processes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import meshmend as mm
from meshmend.job.exchange import MOST, Notes, check_calls, exchange, in_turn
from meshmend.job.reduction.footer import CALLS, MOST_ROUNDS, NOTE, Call, Footer, Note
from meshmend.job.state.values import from_bytes, to_bytes

FOOTER = Footer(lanes=4, ranks=3)
LONG = bytes(range(256)) * (3 * NOTE // 256) + b"odd"


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64])
def test_notes_of_all_ranks_come_out_of_a_sum_of_messages(dtype: Any) -> None:
    whole = {0: b"", 2: LONG}
    for piece in range(5):
        total = np.zeros(FOOTER.size + 5, dtype)
        for rank, lanes in ((0, [0, 1]), (1, [2]), (2, [3])):
            part = np.zeros_like(total)
            note = Note.of(whole[rank], piece) if rank in whole else None
            FOOTER.write(part, lanes, rank, 7, note=note)
            total += part
        assert FOOTER.notes(total) == {rank: Note.of(data, piece) for rank, data in whole.items()}
        found = FOOTER.read(total)
        assert found.counts == [1] * 4 and found.by == [0, 0, 1, 2] and found.digests.keys() == {0, 1, 2}


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64])
def test_calls_of_all_ranks_come_out_of_a_sum_of_messages(dtype: Any) -> None:
    for word in CALLS:
        calls = {0: Call(word), 1: Call("sum", 0), 2: Call(word, MOST_ROUNDS - 1)}
        total = np.zeros(FOOTER.size + 5, dtype)
        for rank in (0, 2, 1):
            part = np.zeros_like(total)
            FOOTER.write(part, [rank], rank, 0, note=Note.of(b"x", 0) if rank == 2 else None, call=calls[rank])
            total += part
        assert FOOTER.calls(total) == calls and FOOTER.notes(total).keys() == {2}


@pytest.mark.parametrize(
    "calls, said",
    [
        ({0: Call("gather"), 1: Call("sum")}, r"worker 0 called job\.gather where worker 1 called job\.sum \(step 4\)"),
        ({0: Call("gather"), 1: Call("gather"), 2: Call("broadcast")}, r"job\.gather where worker 2 called job\.broad"),
        ({0: Call("end"), 1: Call("gather")}, r"worker 0 left its job where worker 1 called job\.gather"),
        ({0: Call("end"), 1: Call("sum"), 2: Call("gather")}, r"worker 0 left its job where worker 2 called"),
        ({0: Call("barrier", 0), 1: Call("sum", 0)}, r"job\.barrier where worker 1 called job\.sum"),
    ],
)
def test_workers_that_make_different_calls_are_told(calls: dict[int, Call], said: str) -> None:
    with pytest.raises(mm.JobError, match=said):
        check_calls(calls, 4)


@pytest.mark.parametrize(
    "calls",
    [
        {0: Call("gather"), 1: Call("gather")},
        {0: Call("gather"), 1: Call("sum", 7)},  # a newcomer in its first sum
        {0: Call("sum"), 1: Call("gather", 7)},  # a newcomer at the first line of its script
        {0: Call("broadcast", 0), 1: Call("gather", 1)},  # a newcomer before the first sum of all
        {0: Call("end"), 1: Call("sum")},  # the couriers say what that is
        {0: Call("end"), 1: Call("evaluate", 7)},  # a newcomer that came after the last step
    ],
)
def test_a_newcomer_may_be_elsewhere(calls: dict[int, Call]) -> None:
    check_calls(calls, 4)


def test_a_newcomer_with_another_call_waits_for_its_turn() -> None:
    """Three workers gather, the newcomer is at a barrier of its own; nobody hears what belongs to another call."""
    calls = {0: Call("barrier", 9), 1: Call("gather"), 2: Call("gather")}
    note = {0: Note.of(b"", 0), 1: Note.of(b"one", 0), 2: Note.of(b"two", 0)}
    assert exchange("gather", b"one", lambda _: in_turn(calls, note)) == {1: b"one", 2: b"two"}
    later = [in_turn(calls, note), in_turn({**calls, 1: Call("sum"), 2: Call("sum")}, {0: note[0]})]
    assert exchange("barrier", b"", lambda _: later.pop(0)) == {0: b""} and not later


class Others:
    """The rounds of an exchange, with what others bring to each."""

    def __init__(self, *rounds: Mapping[int, tuple[bytes, int]]) -> None:
        self.rounds, self.brought = list(rounds), list[Note]()

    def __call__(self, note: Note) -> Notes:
        self.brought.append(note)
        others = {rank: Note.of(data, piece) for rank, (data, piece) in self.rounds.pop(0).items()}
        return {rank: ("gather", one) for rank, one in {1: note, **others}.items()}


def test_all_pieces_of_all_ranks() -> None:
    others = Others(*({0: (b"short", piece), 2: (LONG, piece)} for piece in range(4)))
    assert exchange("gather", b"mine", others) == {0: b"short", 1: b"mine", 2: LONG}
    assert not others.rounds


def test_one_that_dies_in_the_middle_is_missing() -> None:
    others = Others({0: (b"a", 0), 2: (LONG, 0)}, {0: (b"a", 1), 2: (LONG, 1)}, {0: (b"a", 2)})
    assert exchange("gather", b"mine", others) == {0: b"a", 1: b"mine"}


def test_one_that_comes_late_makes_all_begin_again() -> None:
    late = {0: (b"late", 0), 2: (LONG, 1)}
    others = Others({2: (LONG, 0)}, late, *({0: (b"late", piece), 2: (LONG, piece)} for piece in range(4)))
    assert exchange("gather", b"mine", others) == {0: b"late", 1: b"mine", 2: LONG}
    assert [note.piece for note in others.brought] == [0, 1, 0, 1, 2, 3]


def test_too_much_is_refused() -> None:
    with pytest.raises(mm.JobError, match=str(MOST)):
        exchange("gather", bytes(MOST + 1), Others())


@pytest.mark.parametrize("value", [None, 1, 2.5, "text", [1, (2, "x")], {"a": [None, True], 3: {}}, float("inf")])
def test_values_come_back_as_they_were(value: Any) -> None:
    found = from_bytes(to_bytes(value))
    assert found == value and type(found) is type(value)


def test_arrays_come_back_as_arrays() -> None:
    value = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.int64(3)}
    found = from_bytes(to_bytes(value))
    np.testing.assert_array_equal(found["w"], value["w"])
    assert found["w"].dtype == np.float32 and found["n"] == 3
    found["w"][0] = 1  # it is the caller's own


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array(["text"])])
def test_what_cannot_be_sent_is_refused(value: object) -> None:
    with pytest.raises(mm.JobError, match="cannot be sent"):
        to_bytes(value)


@pytest.mark.parametrize(
    "text", [b"{}", b'{"array": ["float32", [2], "AAAA"]}', b'{"array": 3}', b'{"dict": [1]}', b"x"]
)
def test_damage_is_found(text: bytes) -> None:
    with pytest.raises(mm.FormatError):
        from_bytes(text)


def test_alone_everything_is_ones_own() -> None:
    with mm.Job(np.zeros(8, np.float32), batch=8, lanes=4) as job:
        with pytest.raises(mm.JobError, match=r"before job\.share"):
            job.barrier()
        state = job.share(np.zeros(1, np.float32))
        assert job.gather({"a": 1}) == [{"a": 1}]
        assert job.broadcast("me") == "me"
        job.sum(lambda lane: lane.sum())
        with pytest.raises(mm.JobError, match=r"after job\.commit"):
            job.barrier()
        job.commit(state)
        job.barrier()
