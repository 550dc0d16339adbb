"""Dead links by the carrier of their devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshmend.job.transport import carrier as links
from meshmend.job.transport.carrier import Links


def test_a_link_is_down_without_its_device_or_its_carrier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "DEVICES", tmp_path)
    for name, carrier in {"up": "1\n", "cut": "0\n"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "carrier").write_text(carrier)
    for names, down in {"up,up,up,up": 0b0000, "up,cut,up,gone": 0b1010, "up,,cut,": 0b0100, "": 0}.items():
        monkeypatch.setenv("MESHMEND_LINKS", names)
        assert Links().down() == down
    monkeypatch.delenv("MESHMEND_LINKS")
    assert Links().down() == 0
