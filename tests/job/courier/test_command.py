"""What a courier is told when it is started arrives as it was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshmend.job.courier.command import CourierCommand

TOLD = CourierCommand(run="mine", folder=Path("runs/mine"), hosts=[[0, 1], [2]], world=3, repair=True)


@pytest.mark.parametrize(
    "told",
    [
        TOLD,
        CourierCommand(run="m", folder=Path("/a b"), hosts=[[7]], world=1, repair=False, network="lo"),
        CourierCommand(run="m", folder=Path("f"), hosts=[[0]], world=1, repair=True, mesh=("2x2", "ring")),
    ],
)
def test_a_command_is_read_as_it_was_written(told: CourierCommand) -> None:
    assert CourierCommand.read(told.words) == told


def test_an_agent_finds_couriers_by_the_words_they_begin_with() -> None:
    assert TOLD.words == ["mine", "runs/mine", "0,1/2", "3", "repair", "any"]


def test_no_other_word_is_taken_for_no_repair() -> None:
    with pytest.raises(KeyError):
        CourierCommand.read([*TOLD.words[:4], "again", "any"])
