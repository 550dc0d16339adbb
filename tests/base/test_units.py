"""Quantities are read and written in one way everywhere."""

from __future__ import annotations

import math

import pytest

from meshmend.base import units
from meshmend.errors import JobError, MeshmendError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ns", 2.5e-7), ("300us", 3e-4), ("300 µs", 3e-4), ("1.5ms", 1.5e-3), ("2S", 2), ("5min", 300), ("4h", 14400),
     ("2d", 172800), ("1w", 604800), ("1e3s", 1000), ("5.h", 18000)],
)  # fmt: skip
def test_durations_are_read(text: str, seconds: float) -> None:
    assert units.read_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "h", "5 parsecs", "-5s", "1.2.3s", "5mn", "s5"])
def test_what_is_no_duration_is_refused_with_what_was_expected(text: str) -> None:
    with pytest.raises(JobError) as caught:
        units.read_duration(text, "a pause", JobError)
    assert repr(text) in str(caught.value) and "a pause" in str(caught.value) and "min, h, d" in str(caught.value)


def test_durations_are_written() -> None:
    times = (2 * 86400, 5400, 360, 59.99, 59.97, 18, 0.25, 1e-3, 3e-4, 0.0)
    assert [units.duration_text(time) for time in times] == [
        "2 d", "1.5 h", "6 min", "1 min", "60 s", "18 s", "250 ms", "1 ms", "300 µs", "0 µs",
    ]  # fmt: skip
    assert units.duration_text(math.inf) == "never" and units.duration_text(-0.002) == "-2 ms"
    assert [units.milliseconds(time) for time in (12.3456, 0.0123456, 0.00123456)] == ["12,346", "12.3", "1.23"]
    assert [units.milliseconds(time, 2) for time in (12.3456, 0.0123456, 0.00996, 0.0004)] == [
        "12,346",
        "12",
        "10",
        "0.4",
    ]


def test_what_is_written_can_be_read() -> None:
    for exponent in range(-6, 7):
        seconds = 1.23 * 10.0**exponent
        assert units.read_duration(units.duration_text(seconds)) == pytest.approx(seconds, rel=0.005)


def test_frequencies_and_shares() -> None:
    assert units.read_frequency("0.08%/day") == pytest.approx(0.0008 / 24)
    assert units.read_frequency("0.5 / year") == pytest.approx(0.5 / 8766)
    assert [units.read_share(text) for text in ("15%", "0.15", "1e-2")] == pytest.approx([0.15, 0.15, 0.01])
    for read, text in ((units.read_frequency, "0.08%"), (units.read_frequency, "1/moon"), (units.read_share, "most")):
        with pytest.raises(MeshmendError) as caught:
            read(text)
        assert repr(text) in str(caught.value)


def test_shares_and_counts_are_written() -> None:
    assert [units.percent(share) for share in (1.234, 0.1234, 0.01234)] == ["123 %", "12.3 %", "1.23 %"]
    assert units.percent(0.1234, 2) == "12.34 %" and units.percent(0.0123, sign=True) == "+1.23 %"
    assert [units.plural(count, "worker") for count in (0, 1, 2, 1000)] == [
        "0 workers", "1 worker", "2 workers", "1,000 workers",
    ]  # fmt: skip
    assert units.plural(2, "match", "matches") == "2 matches"
    assert [units.agree(count, "joins", "join") for count in (0, 0.5, 1, 1.5, 2)] == [
        "join",
        "joins",
        "joins",
        "join",
        "join",
    ]
