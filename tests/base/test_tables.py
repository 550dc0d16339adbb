"""One table printer: heads of several lines, left and right columns, notes."""

from __future__ import annotations

from meshmend.base.terminal import notes, table


def test_columns_line_up() -> None:
    made = table(["model", "step\nwhole", "ms"], [["bert", "1.0", "12"], ["resnet50", "10.5", ""]])
    assert made.splitlines() == [
        "           step",
        "model     whole  ms",
        "bert        1.0  12",
        "resnet50   10.5",
    ]


def test_heads_of_one_line_take_one_line_and_a_table_may_be_empty() -> None:
    assert table(["a", "b"], []) == "a  b"
    assert table(["a", "b"], [["xx", "y"]], left=2, gap=" ").splitlines() == ["a  b", "xx y"]


def test_notes_keep_a_percentage_together() -> None:
    made = notes("a share of 50 %", "more", width=14)
    assert made.splitlines() == ["* a share of", "  50 %", "* more"]
