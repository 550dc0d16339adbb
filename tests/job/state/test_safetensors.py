"""Checkpoints: back to the bit, whole or not there at all whatever kills the writer, and no bother to the training."""

from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from meshmend.errors import FormatError, JobError
from meshmend.job.checkpoints.interval import CheckpointInterval
from meshmend.job.frameworks.arrays import TreeState, leaves_of, rebuilt
from meshmend.job.state import safetensors as checkpoint
from meshmend.job.state.safetensors import KINDS, Background, latest
from tests.job.states import load, save

DEADLINE = 60.0
DTYPES = [np.dtype(getattr(ml_dtypes, name, name)) for name in KINDS]
SIGNALLING = np.array([0x7F800001, 0xFFC0DEAD, 0x7FFFFFFF, 0x80000000, 1], np.uint32).view(np.float32)


class Moments(NamedTuple):
    mean: Any
    square: Any


@contextmanager
def without_jax() -> Iterator[None]:
    """As in a process that never imported JAX."""
    with mock.patch.dict(sys.modules):
        del sys.modules["jax"]
        yield


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    """Any bits of any type and shape, also with gaps, backwards and in Fortran's order."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4) | st.just(()))
    size = int(np.prod(shape)) * dtype.itemsize
    data = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8).copy()
    array = (data & 1 if dtype.kind == "b" else data).view(dtype).reshape(shape)
    turn = draw(st.sampled_from(["", "transposed", "backwards", "gaps"]))
    if not shape or not turn:
        return array
    return array.T if turn == "transposed" else array[::-1] if turn == "backwards" else np.repeat(array, 2, 0)[::2]


names = st.text(st.characters(codec="utf-8"), max_size=5)
trees = st.recursive(
    arrays() | st.none(),
    lambda below: (
        st.dictionaries(names.map("k".__add__), below, max_size=3)
        | st.lists(below, max_size=3)
        | st.builds(Moments, below, below)
    ),
    max_leaves=6,
)


def bits(tree: Any) -> list[tuple[str, tuple[int, ...], str, bytes]]:
    return [(n, np.shape(a), str(np.asarray(a).dtype), np.asarray(a).tobytes()) for n, a in leaves_of(tree)]


def state(value: float = 1.0) -> dict[str, Any]:
    return {"w": np.full((3, 5), value, np.float32), "b": {"count": np.int64(7), "none": np.zeros((0, 2), np.float16)}}


def settled(tree: Any) -> Any:
    """A tree of other values and the same shapes."""
    return jax.tree.map(lambda leaf: np.zeros_like(np.asarray(leaf)), tree)


def leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.suffix != ".safetensors"]


@pytest.mark.parametrize("plain", [False, True])
@given(tree=trees, step=st.integers(0, 10**9), seed=st.integers())
@example(tree=[SIGNALLING, SIGNALLING.view(ml_dtypes.bfloat16)], step=0, seed=0)
@example(tree=np.float32(3), step=99999999, seed=0)
@example(tree={}, step=100000000, seed=0)
def test_comes_back_to_the_bit(
    tmp_path_factory: pytest.TempPathFactory, plain: bool, tree: Any, step: int, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("round")
    about = {"seed": seed, "grid": [1, -2], "reduction": "exact", "é\x7f": None}
    zeros = settled(tree)
    with without_jax() if plain else nullcontext():
        if len(dict(leaves_of(tree))) < len(leaves_of(tree)):
            return  # keys with dots in them, without JAX
        path = save(folder, tree, step=step, about=about)
        back, at, told = load(path, zeros)
        assert bits(back) == bits(tree) and (at, told) == (step, about)
        assert all(np.asarray(leaf).flags.writeable for _, leaf in leaves_of(back))
    assert latest(folder) == path == folder / f"step-{step:08}.safetensors" and not leftovers(folder)


def test_anybody_can_read_it(tmp_path: Path) -> None:
    import safetensors as package

    tree = {d.name: np.arange(7).astype(d)[::2] for d in DTYPES if "float8" not in d.name} | {"one": np.float64(2)}
    path = save(tmp_path, tree, step=3, about={"seed": 1})
    with package.safe_open(path, "np") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        notes = file.metadata()
    assert {name: array.tobytes() for name, array in found.items()} == {
        name: array.tobytes() for name, array in tree.items()
    }
    assert found["bfloat16"].dtype == ml_dtypes.bfloat16 and found["one"].shape == ()
    assert (notes["meshmend"], notes["step"], notes["about"]) == ("1", "3", '{"seed": 1}')


def test_needs_no_package(tmp_path: Path) -> None:
    code = "import sys; sys.modules['safetensors'] = None\n" + (
        "from meshmend.job.state.safetensors import load, save\nfrom pathlib import Path\nimport numpy as np\n"
        "state = [('w', np.ones(3))]\nprint(load(save(Path(sys.argv[1]), state, step=1, about={}), state)[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True, timeout=DEADLINE
    )
    assert done.stdout == "(1, {})\n"


def test_jax_arrays(tmp_path: Path) -> None:
    tree = Moments({"w": jnp.linspace(0, 1, 7, dtype=jnp.bfloat16)}, jnp.float32(3))
    said: list[Any] = []
    writer = Background(tmp_path, said=lambda *what: said.append(what))
    assert writer.offer(TreeState(tree).snapshot, 5, {})
    # The buffer is given away while it may still be being written.
    after = jax.jit(lambda moments: jax.tree.map(lambda leaf: leaf + 1, moments), donate_argnums=0)(tree)
    writer.close()
    back, step, _ = load(said[0][0], after)
    assert step == 5
    assert bits(back) == bits(Moments({"w": jnp.linspace(0, 1, 7, dtype=jnp.bfloat16)}, jnp.float32(3)))


@pytest.mark.parametrize(
    ("like", "says"),
    [
        ({"w": np.zeros((3, 4), np.float32)}, r"leaf 'w' of .* is F32\[3, 5\], but here it is F32\[3, 4\]; "),
        ({"w": np.zeros((3, 5), np.float64)}, r"leaf 'w' of .* is F32\[3, 5\], but here it is F64\[3, 5\]; "),
        ({"w": np.zeros((3, 5), ">f4")}, r"leaf 'w' of .* is F32\[3, 5\], but here it is >f4\[3, 5\]; "),
        ({"w": np.zeros((3, 5), np.float32), "x": 1}, r"leaf 'x' is in this job's state but not in .*step-00000001"),
        ({}, r"leaf 'w' is in .*step-00000001.safetensors but not in this job's state"),
    ],
)
def test_another_state_is_refused_by_name(tmp_path: Path, like: Any, says: str) -> None:
    path = save(tmp_path, {"w": np.zeros((3, 5), np.float32)}, step=1, about={})
    with pytest.raises(JobError, match=says + r".*resume with the script that wrote it$"):
        load(path, like)


@pytest.mark.parametrize("value", [np.zeros(2, complex), np.array(["a"]), np.array([{}]), np.zeros(2, ">f4")])
def test_types_that_cannot_be_saved_are_refused_by_name(tmp_path: Path, value: np.ndarray) -> None:
    with pytest.raises(JobError, match=r"leaf 'w' has type"):
        save(tmp_path, {"w": value}, step=1, about={})
    assert not list(tmp_path.iterdir())


KEYS = st.text("abc", min_size=1, max_size=2)
TREES = st.recursive(
    st.none() | st.integers(0, 9),
    lambda tree: (
        st.dictionaries(KEYS, tree, max_size=3)
        | st.dictionaries(KEYS, tree, max_size=3).map(OrderedDict)
        | st.lists(tree, max_size=3)
        | st.tuples(tree, tree)
        | st.builds(Moments, tree, tree)
    ),
    max_leaves=8,
)


@given(TREES)
def test_leaves_have_the_same_names_and_order_with_jax_and_without(tree: Any) -> None:
    leaves, twice = leaves_of(tree), rebuilt(tree, [2 * value for _, value in leaves_of(tree)])
    with without_jax():
        assert leaves_of(tree) == leaves
        assert rebuilt(tree, [2 * value for _, value in leaves]) == twice


def test_names_that_clash_are_refused(tmp_path: Path) -> None:
    with without_jax():
        for tree in ({"a.b": 1, "a": {"b": 2}}, {"__metadata__": 1}):
            with pytest.raises(JobError, match=r"two leaves of the state have the name '(a\.b|__metadata__)'"):
                save(tmp_path, tree, step=1, about={})


def test_any_damage_shows(tmp_path: Path) -> None:
    """Every bit of a small file, and every length it can be cut to."""
    good = save(tmp_path, state(1), step=1, about={"grid": [1]})
    bad = save(tmp_path, state(2), step=2, about={"grid": [1]})
    whole = bad.read_bytes()
    flips = [
        whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :] for at in range(len(whole)) for bit in range(8)
    ]
    cuts = [whole[:length] for length in range(len(whole))]
    longer = [whole + b"\0", whole + whole]
    passed: list[FormatError] = []
    for damaged in flips + cuts + longer:
        bad.write_bytes(damaged)
        with pytest.raises(FormatError, match=r"step-00000002.*; choose"):
            load(bad, state())
        assert latest(tmp_path, passed.append) == good
    assert len(passed) == len(flips) + len(cuts) + len(longer)
    bad.write_bytes(whole)
    assert latest(tmp_path) == bad


def test_damage_in_a_large_file_shows(tmp_path: Path) -> None:
    with mock.patch.object(checkpoint, "PIECE", 1000):
        good = save(tmp_path, {"w": np.arange(5000)}, step=1, about={})
        bad = save(tmp_path, {"w": np.arange(5000)}, step=2, about={})
    assert load(bad, {"w": np.zeros(5000, int)})[0]["w"].tolist() == list(range(5000))
    for at in [*range(0, bad.stat().st_size, 997), bad.stat().st_size - 1]:
        with bad.open("r+b") as file:
            file.seek(at)
            old = file.read(1)
            file.seek(at)
            file.write(bytes([old[0] ^ 0x10]))
            file.flush()
            assert latest(tmp_path) == good
            file.seek(at)
            file.write(old)
    assert latest(tmp_path) == bad


def test_other_files_are_refused_or_ignored(tmp_path: Path) -> None:
    assert latest(tmp_path) is None and latest(tmp_path / "nowhere") is None
    with pytest.raises(FormatError, match=r"nowhere .*No such file"):
        load(tmp_path / "nowhere", state())
    for name, data in {"step-00000009.safetensors": b"", "step-00000008.safetensors": os.urandom(500)}.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(FormatError, match=f"{name} was not written by meshmend, or is damaged"):
            load(tmp_path / name, state())
    (tmp_path / "step-00000010.safetensors").mkdir()
    (tmp_path / "step-5.safetensors").write_bytes(b"x")
    (tmp_path / "notes.txt").write_bytes(b"x")
    assert latest(tmp_path) is None
    path = save(tmp_path, state(), step=3, about={})
    assert latest(tmp_path) == path
    with mock.patch.object(checkpoint, "FORMAT", "2"):
        later = save(tmp_path, state(), step=4, about={})
    with pytest.raises(FormatError, match="has format 2, but this meshmend reads 1"):
        load(later, state())
    assert latest(tmp_path) == path


def test_one_that_may_not_be_read_is_no_reason_to_begin_anew(tmp_path: Path) -> None:
    save(tmp_path, state(), step=3, about={})
    with (
        mock.patch("meshmend.job.state.safetensors.os.open", side_effect=PermissionError(errno.EACCES, "no")),
        pytest.raises(JobError, match="no permission to read"),
    ):
        latest(tmp_path)


STOPPED = """
import hashlib, os, sys
from pathlib import Path
from types import SimpleNamespace
import numpy as np
from meshmend.job.state import safetensors as checkpoint

folder, point = Path(sys.argv[1]), sys.argv[2]

def here(*_):
    print("here", flush=True)
    sys.stdin.read()

class Digest:
    def __init__(self, data):
        self.count, self.real = 0, hashlib.sha256(data)
    def update(self, piece):
        self.count += 1
        if self.count == 3:
            here()
        self.real.update(piece)
    def hexdigest(self):
        if point == "checksum":
            here()
        return self.real.hexdigest()

checkpoint.save(folder, [("w", np.full(1 << 20, 1))], step=1, about={})
if point in ("data", "checksum"):
    checkpoint.PIECE = 1 << (20 if point == "data" else 30)
    checkpoint.hashlib = SimpleNamespace(sha256=Digest)
elif point == "renamed":
    fsync = os.fsync
    os.fsync = lambda file: here() if os.path.isdir(f"/proc/self/fd/{file}") else fsync(file)
else:
    setattr(os, point, here)
checkpoint.save(folder, [("w", np.full(1 << 20, 2))], step=2, about={})
"""


@contextmanager
def running(code: str, *words: object) -> Iterator[subprocess.Popen[str]]:
    """A process that is killed when we are done with it, and in any case at the deadline."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    timer = threading.Timer(DEADLINE, process.kill)
    timer.start()
    try:
        with process:
            yield process
            process.kill()
    finally:
        timer.cancel()
        timer.join()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("point", "step"), [("data", 1), ("checksum", 1), ("fsync", 1), ("replace", 1), ("renamed", 2)]
)
def test_a_writer_killed_at_each_point(tmp_path: Path, point: str, step: int) -> None:
    with running(STOPPED, tmp_path, point) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        while_alive = leftovers(tmp_path)
        assert len(while_alive) == (step == 1)
        save(tmp_path, {"w": np.zeros(1)}, step=0, about={})
        assert leftovers(tmp_path) == while_alive, "a living writer's file is not swept away"
    found = latest(tmp_path)
    assert found == tmp_path / f"step-{step:08}.safetensors"
    with without_jax():
        assert (load(found, {"w": np.zeros(1 << 20, int)})[0]["w"] == step).all()
    save(tmp_path, {"w": np.zeros(1)}, step=3, about={})
    assert not leftovers(tmp_path)


WRITER = """
import sys
from pathlib import Path
import numpy as np
from meshmend.job.state import safetensors as checkpoint

state, step = {"w": np.zeros(1 << 23)}, int(sys.argv[2])
while True:
    state["w"][:] = step
    checkpoint.save(Path(sys.argv[1]), [*state.items()], step=step, about={})
    print(step, flush=True)
    step += 1
"""


def test_writers_killed_at_random(tmp_path: Path) -> None:
    """64 MB each: after it was told that a step is saved, that one or a later one is there, and whole."""
    chance, step = random.Random(0), 0
    for _ in range(6):
        with running(WRITER, tmp_path, step) as process:
            assert process.stdout is not None
            told = int(process.stdout.readline())
            grown, deadline = chance.randrange(1 << 26), time.monotonic() + DEADLINE
            while time.monotonic() < deadline and not any(size(path) > grown for path in leftovers(tmp_path)):
                pass
        found = latest(tmp_path)
        assert found is not None
        with without_jax():
            back, step, _ = load(found, {"w": np.zeros(1 << 23)})
        assert step >= told and (back["w"] == step).all()
        step += 1
        for old in tmp_path.glob("step-*"):
            if old != found:
                old.unlink()


def size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


class Held:
    """Stands in for os.replace: says when a write has come so far, and holds it there until told."""

    def __init__(self) -> None:
        self.here, self.go = threading.Event(), threading.Event()

    def __call__(self, old: Path, new: Path) -> None:
        self.here.set()
        assert self.go.wait(DEADLINE)
        old.rename(new)


def test_offers_while_busy_are_refused_and_the_snapshot_stays(tmp_path: Path) -> None:
    said: list[Any] = []
    writer = Background(tmp_path, said=lambda *what: said.append(what))
    base = np.ones((40, 40))
    frozen = base[:20]
    frozen.flags.writeable = False
    tree, about = {"w": np.ones((40, 40))[:, ::2], "frozen": frozen}, {"grid": [1]}
    before = settled(tree)
    assert not writer.busy
    with mock.patch.object(checkpoint.os, "replace", held := Held()):
        # The thread is held before it reads anything: what is changed now would show.
        with mock.patch.object(checkpoint, "_sweep", lambda _: held.go.wait(DEADLINE)):
            assert writer.offer(TreeState(tree).snapshot, 1, about)
            base[:] = tree["w"][:] = 2
            about["grid"].append(5)
            assert writer.busy and not writer.offer(TreeState(tree).snapshot, 2, about)
            held.go.set()
            assert held.here.wait(DEADLINE)
        writer.close()
    assert not writer.busy
    path = tmp_path / "step-00000001.safetensors"
    [(what, seconds, nbytes)] = said
    assert what == path and seconds >= 0 and nbytes == path.stat().st_size
    back, step, told = load(path, before)
    assert (back["w"] == 1).all() and (back["frozen"] == 1).all() and (step, told) == (1, {"grid": [1]})
    assert writer.offer(TreeState(tree).snapshot, 2, about)
    writer.close()
    assert latest(tmp_path) == tmp_path / "step-00000002.safetensors"


def test_keeps_the_newest_and_removes_after_the_new_one_is_there(tmp_path: Path) -> None:
    writer = Background(tmp_path, keep=2)
    save(tmp_path, state(), step=90, about={})
    for step in (1, 2, 3):
        assert writer.offer(TreeState(state()).snapshot, step, {})
        writer.close()
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        f"step-{step:08}.safetensors" for step in (2, 3, 90)
    ], "one from a later step is not older"
    with mock.patch.object(checkpoint.os, "replace", held := Held()):
        assert writer.offer(TreeState(state()).snapshot, 4, {})
        assert held.here.wait(DEADLINE)
        assert (tmp_path / "step-00000002.safetensors").exists()
        held.go.set()
        writer.close()
    assert sorted(step for step, _ in checkpoint._steps(tmp_path)) == [3, 4, 90]


def test_errors_are_told_and_the_next_offer_tries_again(tmp_path: Path) -> None:
    said: list[Any] = []
    folder = tmp_path / "run" / "checkpoints"
    (tmp_path / "run").write_text("a file where the folder should be")
    writer = Background(folder, keep=1, said=lambda *what: said.append(what))
    assert writer.offer(TreeState(state()).snapshot, 1, {})
    writer.close()
    assert isinstance(said[-1][0], NotADirectoryError) and said[-1][2] == 0
    (tmp_path / "run").unlink()
    assert writer.offer(TreeState(state()).snapshot, 2, {})
    writer.close()
    assert said[-1][0] == folder / "step-00000002.safetensors"
    with mock.patch.object(checkpoint.os, "fsync", side_effect=OSError(errno.ENOSPC, "No space left on device")):
        assert writer.offer(TreeState(state()).snapshot, 3, {})
        writer.close()
    assert said[-1][0].errno == errno.ENOSPC
    assert [path.name for path in folder.iterdir()] == ["step-00000002.safetensors"], "nothing half written stays"
    assert writer.offer(TreeState({"w": np.array([{}])}).snapshot, 3, {})
    writer.close()
    assert isinstance(said[-1][0], JobError) and len(said) == 4


def test_writing_does_not_stop_the_training(tmp_path: Path) -> None:
    """This thread goes on while 128 MB are hashed and written: many turns, where a held GIL would give two."""
    writer = Background(tmp_path)
    assert writer.offer(TreeState({"w": np.zeros(1 << 24)}).snapshot, 1, {})
    turns, deadline = 0, time.monotonic() + DEADLINE
    while writer.busy and time.monotonic() < deadline:
        turns += 1
        time.sleep(0)
    writer.close()
    assert turns > 10


@pytest.mark.parametrize(
    ("every", "cost", "seconds"),
    [
        ("60s", 9, 60),
        ("60S", 9, 60),
        ("500ms", 9, 0.5),
        ("5min", 9, 300),
        ("2h", 9, 7200),
        ("2d", 9, 172_800),
        ("0.5 s", 9, 0.5),
        ("auto", 0, 30),
        ("auto", 4, 400),
        ("", 4, 400),
    ],
)
def test_pace_in_time(every: str, cost: float, seconds: float) -> None:
    now = 1000.0
    pace = CheckpointInterval(every, clock=lambda: now)
    pace.cost = cost
    for step in range(1, 4):
        now += seconds - 0.01
        assert not pace.due(step)
        now += 0.02
        assert pace.due(step) and pace.due(step)
        pace.began(step)


def test_pace_in_steps() -> None:
    pace = CheckpointInterval("100", step=150)
    assert [step for step in range(150, 401) if pace.due(step) and (pace.began(step) or True)] == [200, 300, 400]
    assert not pace.due(499) and pace.due(500) and pace.due(501), "a refused offer is made again"
    pace.began(501)
    assert not pace.due(599) and pace.due(600)


@pytest.mark.parametrize(
    "every", [" 0", "0", "0s", "-5s", "1.5", "5 minutes", "s", "60 S.", "nan", "infs", "auto5", "²", "9" * 5000]
)
def test_pace_that_cannot_be(every: str) -> None:
    with pytest.raises(JobError, match=r"^checkpoints every '.*': .* 60s .* 100, or auto$"):
        CheckpointInterval(every)
