"""A cache is the same as decoding each time, whoever writes to it and is killed meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from meshmend.errors import JobError
from meshmend.job.data.cache import Cache
from meshmend.job.data.cache_file import PREFIX, CacheHome, remove_unused

ROOT = Path(__file__).parents[3]


def sample(number: int) -> Any:
    """What decoding gives, of a length of its own."""
    random = np.random.default_rng(number)
    return {
        "x": random.integers(0, 255, (3 + number % 5, 1000), dtype=np.uint8),
        "y": (np.int64(number), [0.5 * number]),
    }


def opened(run: Path | None, room: int = 10_000_000, count: int = 100, folder: Path | None = None) -> Cache:
    return Cache("a", count, room, folder, CacheHome(run), sample(0))


def same(found: Any, expected: Any) -> bool:
    return (
        found["x"].tobytes() == expected["x"].tobytes()
        and found["x"].shape == expected["x"].shape
        and (found["y"][0], found["y"][1][0]) == (expected["y"][0], expected["y"][1][0])
    )


def test_what_one_worker_puts_another_gets(tmp_path: Path) -> None:
    writer, reader = opened(tmp_path), opened(tmp_path)
    for number in range(0, 100, 3):
        writer.put(number, sample(number))
    assert [number for number in range(100) if reader.has(number)] == [*range(0, 100, 3)]
    assert all(same(reader.get(number), sample(number)) for number in range(0, 100, 3))
    assert reader.get(1) is None and opened(tmp_path).stored == 34
    with pytest.raises(ValueError, match="read-only"):
        reader.get(0)["x"][:] = 0  # type: ignore[index]


@given(
    st.lists(
        arrays.arrays(
            st.sampled_from([np.uint8, np.float32, np.int64]).map(np.dtype),
            arrays.array_shapes(min_dims=1, max_dims=1, min_side=0, max_side=40),
        ),
        min_size=1,
        max_size=4,
    ),
    st.data(),
)
@settings(max_examples=40, deadline=None)
def test_any_arrays_come_back_bit_for_bit(parts: list[Any], data: st.DataObject) -> None:
    first = tuple(parts)
    cache = Cache("any", 8, 1 << 20, None, CacheHome(), first)
    put: dict[int, Any] = {}
    for number in data.draw(st.lists(st.integers(0, 7), max_size=8)):
        row = tuple(np.resize(part, data.draw(st.integers(0, 30))) if part.size else part for part in first)
        put.setdefault(number, row)
        cache.put(number, row)
    for number, row in put.items():
        found = cache.get(number)
        assert found is not None
        assert [(a.dtype, a.shape, a.tobytes()) for a in found] == [(a.dtype, a.shape, a.tobytes()) for a in row]


def test_it_stays_within_its_room_and_says_so_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    room = 40_000
    one, two = opened(tmp_path, room), opened(tmp_path, room)
    for number in range(100):
        (one, two)[number % 2].put(number, sample(number))
    kept = [number for number in range(100) if two.has(number)]
    assert 3 <= len(kept) < 12 and all(same(one.get(number), sample(number)) for number in kept)
    [path] = tmp_path.iterdir()
    assert path.stat().st_blocks * 512 <= room + 4096  # whole pages
    assert capsys.readouterr().out.count("decoded each time") == 1


def test_a_disk_that_is_full_is_the_end_of_the_cache_and_not_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = opened(None)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    cache.put(1, sample(1))
    assert cache.full and not cache.has(1)


@pytest.mark.parametrize("room", [1 << 60, 500])
def test_room_that_is_not_there_is_one_sentence(tmp_path: Path, room: int) -> None:
    with pytest.raises(JobError):
        Cache("a", 1 << 40 if room > 500 else 100, room, None, CacheHome(tmp_path), sample(0))


def test_room_that_no_process_can_map_is_one_sentence() -> None:
    """The samples would fit, so the disk is large enough; the address space is not."""
    with pytest.raises(JobError, match="less room"):
        Cache("a", 10, 1 << 50, None, CacheHome(), sample(0))


def test_workers_with_other_samples_do_not_share(tmp_path: Path) -> None:
    opened(tmp_path)
    with pytest.raises(JobError):
        Cache("a", 100, 10_000_000, None, CacheHome(tmp_path), np.zeros(3))
    with pytest.raises(JobError):
        opened(tmp_path, room=20_000_000)
    with pytest.raises(JobError):
        opened(tmp_path).put(3, {"x": np.zeros(4), "y": (1, [2.0])})


def test_in_a_folder_of_the_users_the_last_one_removes_it_or_the_next(tmp_path: Path) -> None:
    run, other, disk = tmp_path / "run", tmp_path / "other", tmp_path / "disk"
    for folder in (run, other, disk):
        folder.mkdir()
    one, two = opened(run, folder=disk), opened(run, folder=disk)
    one.put(7, sample(7))
    [path] = disk.iterdir()
    assert path.name.startswith(PREFIX) and two.has(7)
    one.close()
    assert path.exists() and same(opened(run, folder=disk).get(7), sample(7))  # a replacement finds it warm
    two.close()
    assert not [*disk.iterdir()] and not [*run.iterdir()]
    left = disk / f"{PREFIX}of-a-killed-run"
    left.write_bytes(b"x")
    opened(other, folder=disk)
    assert not left.exists()


def test_a_stopped_writer_keeps_nobody_waiting(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    holder = subprocess.Popen(
        [sys.executable, "-c", "import fcntl,sys; f=open(sys.argv[1],'r+b'); fcntl.lockf(f, fcntl.LOCK_EX, 8, 0); "
         "print('held', flush=True); sys.stdin.read()", str(tmp_path / "cache-a")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
    holder.send_signal(signal.SIGSTOP)
    done = threading.Thread(target=cache.put, args=(3, sample(3)))
    done.start()
    done.join(30)
    assert not done.is_alive() and not cache.has(3) and not cache.full
    holder.kill()
    holder.communicate(timeout=30)
    cache.put(3, sample(3))
    assert same(cache.get(3), sample(3))


WRITER = """
import os, signal, sys
from pathlib import Path
import numpy as np
from tests.job.data.test_cache import opened, sample
run, number, point = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
cache = opened(run)
write, count = cache._write, 0

def half(at, data):
    global count
    write(at, data[: len(data) // 2])
    if count == point:
        os.kill(os.getpid(), signal.SIGKILL)
    count += 1
    write(at, data)

cache.put(0, sample(0))
cache._write = half
cache.put(number, sample(number))
"""


def test_caches_of_other_users_are_left_alone(tmp_path: Path) -> None:
    """Also by root, who might remove them."""
    if os.geteuid():
        pytest.skip("needs root, to act as another user")
    ours, theirs = tmp_path / f"{PREFIX}ours-1", tmp_path / f"{PREFIX}theirs-1"
    for path in (ours, theirs):
        path.touch()
    os.chown(theirs, 65534, 65534)
    os.mkfifo(tmp_path / f"{PREFIX}pipe")
    remove_unused(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{PREFIX}pipe", theirs.name]


def test_a_writer_killed_in_the_middle_of_a_sample_leaves_nothing_torn(tmp_path: Path) -> None:
    """At each of its arrays, really killed; what it took is lost room, and the sample is stored by the next."""
    mine = opened(tmp_path)
    for point in range(3):
        number = 10 + point
        command = [sys.executable, "-c", textwrap.dedent(WRITER), str(tmp_path), str(number), str(point)]
        done = subprocess.run(command, cwd=ROOT, timeout=60, capture_output=True)
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
        assert mine.has(0) and not mine.has(number)
    for number in range(100):
        mine.put(number, sample(number))
    assert all(same(mine.get(number), sample(number)) for number in range(100))


ENDLESS = """
import sys
from pathlib import Path
from tests.job.data.test_cache import opened, sample
cache = opened(Path(sys.argv[1]))
print("ready", flush=True)
for number in np.random.default_rng(int(sys.argv[2])).permutation(100):
    cache.put(int(number), sample(int(number)))
print("done", flush=True)
""".replace("import sys\n", "import sys\nimport numpy as np\n", 1)


def test_writers_at_once_and_killed_anywhere_leave_whole_samples(tmp_path: Path) -> None:
    mine = opened(tmp_path)
    for seed in range(2):
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", ENDLESS, str(tmp_path), str(2 * seed + turn)], cwd=ROOT, stdout=subprocess.PIPE
            )
            for turn in range(2)
        ]
        for writer in writers:
            assert writer.stdout is not None and writer.stdout.readline() == b"ready\n"
        for number in range(0, 100, 7):  # while they write
            found = mine.get(number)
            assert found is None or same(found, sample(number))
        for writer in writers:
            writer.kill()
            writer.communicate(timeout=30)
        assert all(same(mine.get(number), sample(number)) for number in range(100) if mine.has(number))
