"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from meshmend.base.whole_files import create, replace

KILLED_WHEN_IT_WRITES = """
import resource, signal, sys
from pathlib import Path
from meshmend.base import whole_files
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
getattr(whole_files, sys.argv[1])(Path(sys.argv[2]), "text")
"""


@pytest.mark.parametrize("how", ["create", "replace"])
def test_a_writer_that_is_killed_leaves_no_half_file(tmp_path: Path, how: str) -> None:
    path = tmp_path / "file"
    if how == "replace":
        path.write_text("before")
    done = subprocess.run([sys.executable, "-c", KILLED_WHEN_IT_WRITES, how, str(path)], timeout=300)
    assert done.returncode == -signal.SIGXFSZ
    if how == "replace":
        assert path.read_text() == "before"
        replace(path, "after")
    else:
        assert not path.exists()
        assert create(path, "after")
    assert path.read_text() == "after"


def test_a_file_is_created_once_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    assert create(tmp_path / "file", "first") and not create(tmp_path / "file", "second")
    assert (tmp_path / "file").read_text() == "first"
    replace(tmp_path / "file", "third")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["third"]


def test_without_hard_links_a_file_is_created_once_too(tmp_path: Path) -> None:
    with patch.object(os, "link", side_effect=OSError(errno.EPERM, "no links here")):
        assert create(tmp_path / "file", "first") and not create(tmp_path / "file", "second")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["first"]


def test_a_link_that_was_made_although_an_error_was_reported_counts(tmp_path: Path) -> None:
    """As NFS does where the answer was lost, and the second request found the file of the first."""
    link = os.link

    def linked(source: Path, path: Path) -> None:
        link(source, path)
        raise FileExistsError

    with patch.object(os, "link", linked):
        assert create(tmp_path / "file", "first")


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    with patch.object(os, "fsync", side_effect=OSError(errno.ENOSPC, "full")), pytest.raises(OSError, match="full"):
        create(tmp_path / "file", "text")
    assert not [*tmp_path.iterdir()]
