"""`meshmend plan --groups` and `--collective`: what they print, and what they refuse in one sentence."""

from __future__ import annotations

import pytest

from meshmend import cli


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["4x4", "--groups", "2x2"], "all_reduce in 4 groups at once"),
        (["4x4", "-chip@0,0", "--collective", "all_gather"], "of at most"),
        (["3x3", "--collective", "broadcast", "--root", "0,0"], "which is chip 0,0"),
    ],
)
def test_it_prints_the_plan_its_bound_and_its_proof(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", *words]) == 0
    out = capsys.readouterr().out
    assert says in out and "bound " in out and "the shares of each piece add up to the whole piece" in out
    assert ("never adds" in out) == ("--groups" in words)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["8x8", "--groups", "3x2"], "tiles of 3x2 do not divide 8x8"),
        (["8x8", "--groups", "2x"], "cannot read the tile '2x'"),
        (["8x8", "--groups", "2x2", "--collective", "broadcast"], "leave out --groups or --collective"),
        (["8x8", "--groups", "2x2", "--algorithm", "ring"], "supports only all-reduces over all chips"),
        (["8x8", "--collective", "broadcast", "--root", "a"], "cannot read the chip 'a'"),
        (
            ["4x4", "--collective", "all_gather", "--link", "x", "--spread-roots"],
            "--spread-roots and --link apply only",
        ),
        (["4x4", "--groups", "2x2", "--nbytes", "nonsense"], "--nbytes applies only"),
        (["4x4", "--root", "1,1"], "all_reduce has no root to choose: leave --root out (given: 1,1)"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", *words]) != 0
    err = capsys.readouterr().err
    assert says in err and err.count("\n") == 1
