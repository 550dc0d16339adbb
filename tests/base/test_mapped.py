"""One array over stretches of several files."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from meshmend.base.mapped import PAGE, Stretch, map_stretches


def made(path: Path, pages: int, first: int) -> int:
    """A file whose pages hold one number each."""
    path.write_bytes(b"".join(bytes([first + page]) * PAGE for page in range(pages)))
    return os.open(path, os.O_RDWR)


def mappings(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


def test_pages_of_several_files_lie_in_a_row_and_outlive_them(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    files = [made(one, 4, 10), made(two, 3, 20)]
    found = map_stretches([Stretch(files[0], PAGE, 2 * PAGE), Stretch(files[1], 0, PAGE), Stretch(files[0], 0, PAGE)])
    os.pwrite(files[1], b"\7", 5)
    for file in files:
        os.close(file)
    one.unlink()
    two.write_bytes(b"")  # a worker would be killed here: files are never cut, only removed
    two.unlink()
    assert found[::PAGE][:2].tolist() == [11, 12] and found[3 * PAGE] == 10
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 1


def test_what_others_write_is_seen_and_the_last_reference_gives_the_addresses_back(tmp_path: Path) -> None:
    path = tmp_path / "one"
    file = made(path, 2, 1)
    before = mappings(path)
    view = map_stretches([Stretch(file, PAGE, PAGE), Stretch(file, 0, PAGE)]).view(np.uint32)[8:]
    assert mappings(path) == before + 2
    os.pwrite(file, b"\5\0\0\0", PAGE + 32)
    assert view[0] == 5
    del view
    gc.collect()
    assert mappings(path) == before
    os.close(file)


def test_a_file_that_cannot_be_mapped_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "one"
    file = made(path, 2, 1)
    before = mappings(path)
    with pytest.raises(OSError, match=r"Invalid argument|Bad file"):
        map_stretches([Stretch(file, 0, PAGE), Stretch(file, 1, PAGE)])
    gc.collect()
    assert mappings(path) == before
    os.close(file)


FORKS = """
import ctypes, gc, mmap, os, sys
from meshmend.base.mapped import _FIXED, PAGE, Stretch, _map, map_stretches

path = sys.argv[1]
file = os.open(path, os.O_RDONLY)
found = map_stretches([Stretch(file, 0, 2 * PAGE)])
where = found.ctypes.data
if not os.fork():
    assert path not in open("/proc/self/maps").read()
    access, kind = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED
    _map(where, 2 * PAGE, access, kind, -1, 0)  # what the child happens to have there
    del found
    gc.collect()
    ctypes.c_char.from_address(where).value = b"7"
    os._exit(7)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
assert found[0] == 1 and found[PAGE] == 2
"""


def test_a_child_has_nothing_of_it_and_unmaps_nothing(tmp_path: Path) -> None:
    """The processes that load data may live long, and would keep the memory of the dead."""
    os.close(made(tmp_path / "one", 2, 1))
    subprocess.run([sys.executable, "-c", FORKS, str(tmp_path / "one")], check=True, timeout=300)
