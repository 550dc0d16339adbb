"""Where samples come from: arrays, rows, images, tables and streams; what is bad among them; and lengths."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import meshmend as mm
from meshmend.errors import JobError
from meshmend.job.data.cache_file import CacheHome
from meshmend.job.data.feed import order_of
from meshmend.job.data.lanes import Lanes
from meshmend.job.data.reading import BadSample, Map


def test_arrays_and_rows_are_put_together_as_numpy_would() -> None:
    x, y = np.arange(12.0).reshape(6, 2), np.arange(6)
    ids = np.array([4, 1])
    assert [part.tolist() for part in mm.data.arrays(x, y)[ids]] == [x[ids].tolist(), [4, 1]]
    assert mm.data.arrays({"x": x})[ids]["x"].tolist() == x[ids].tolist()
    assert mm.data.arrays(x)[ids].tolist() == x[ids].tolist()
    rows = [(value, {"id": number}) for number, value in enumerate(x)]
    found = mm.data.rows(rows)[ids]
    assert found[0].tolist() == x[ids].tolist() and found[1]["id"].tolist() == [4, 1]


class Grain:
    """As a random access data source of grain."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, record: int) -> Any:
        return {"value": np.float32(record)}


def test_a_source_of_grain_needs_no_grain() -> None:
    assert mm.data.rows(Grain())[np.array([3, 0])]["value"].tolist() == [3, 0]


# ── images ──


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    from PIL import Image

    random = np.random.default_rng(0)
    for name, size in [
        ("cat/1.png", (20, 30)),
        ("cat/2.jpg", (16, 16)),
        ("dog/x/3.png", (40, 20)),
        ("dog/4.bmp", (9, 9)),
    ]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (*size, 3), dtype=np.uint8)).save(path)
    (tmp_path / "dog" / "notes.txt").write_text("no image")
    return tmp_path


def test_images_are_found_in_order_and_have_one_shape(pictures: Path) -> None:
    found, labels = mm.data.images(pictures, size=(8, 12))[np.arange(4)]
    assert found.shape == (4, 8, 12, 3) and found.dtype == np.uint8 and labels.tolist() == [0, 0, 1, 1]
    from PIL import Image

    with Image.open(pictures / "cat" / "1.png") as image:
        whole, _ = mm.data.images(pictures)[np.array([0])]
        assert whole[0].tobytes() == np.asarray(image).tobytes()
    assert mm.data.images(pictures, size=8, mode="L")[np.array([1])][0].shape == (1, 8, 8)


@pytest.mark.parametrize("cache", ["none", "compressed", "uncompressed"])
def test_images_are_the_same_decoded_each_time_and_from_caches(pictures: Path, cache: str) -> None:
    data = {
        "none": lambda: mm.data.images(pictures, size=8),
        "compressed": lambda: mm.data.images(pictures, decode=False).cache("1MB").map(mm.data.decode_image(8)),
        "uncompressed": lambda: mm.data.images(pictures, size=8).cache("1MB"),
    }[cache]()
    expected = mm.data.images(pictures, size=8)[np.arange(4)]
    for _ in range(2):
        assert [part.tobytes() for part in data[np.arange(4)]] == [part.tobytes() for part in expected]


@pytest.mark.parametrize("cache", [False, True])
def test_an_image_that_cannot_be_read_is_named_and_fatal_or_replaced(
    pictures: Path, cache: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = pictures / "cat" / "2.jpg"
    bad.write_bytes(bad.read_bytes()[:300])
    fatal = mm.data.images(pictures, size=8)
    with pytest.raises(BadSample) as caught:
        (fatal.cache("1MB") if cache else fatal)[np.arange(4)]
    assert caught.value.number == 1 and str(bad) in str(caught.value)
    skipping = mm.data.images(pictures, size=8, on_error="skip")
    skipping = skipping.cache("1MB") if cache else skipping
    for _ in range(2):
        images, labels = skipping[np.arange(4)]
        assert labels.tolist() == [0, 1, 1, 1] and images[1].tobytes() == images[2].tobytes()
    assert capsys.readouterr().out.count(str(bad)) == 1


def test_a_failure_of_the_host_is_never_skipped() -> None:
    """Another worker may be able to read what this one cannot: then they would train on different samples."""

    class Broken(Grain):
        def __getitem__(self, record: int) -> Any:
            raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output"):
        mm.data.rows(Broken(), on_error="skip")[np.array([0])]


def test_a_bug_in_a_map_is_not_a_bad_sample() -> None:
    data = mm.data.rows(range(9), on_error="skip").map(lambda sample: sample.missing)
    with pytest.raises(AttributeError):
        data[np.array([0])]


def test_data_in_which_nothing_can_be_read_is_one_sentence() -> None:
    def fail(sample: int) -> int:
        raise ValueError(f"no {sample}")

    with pytest.raises(JobError, match="in a row"):
        mm.data.rows(range(3), on_error="skip").map(fail)[np.array([0])]


@pytest.mark.parametrize("shape", [(9, 12, 3), (9, 12)])
def test_a_random_crop_is_a_part_of_the_image_and_depends_on_the_generator_alone(shape: tuple[int, ...]) -> None:
    image = np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)
    crop = mm.data.random_crop((5, 4), mirror=True)
    parts = {image[y : y + 5, x : x + 4].tobytes() for y in range(5) for x in range(9)}
    turned = {image[y : y + 5, x : x + 4][:, ::-1].tobytes() for y in range(5) for x in range(9)}
    found = [crop((image, 7), np.random.default_rng(seed)) for seed in range(60)]
    cut = [part.tobytes() for part, label in found if label == 7]
    assert len(cut) == 60 and {*cut} <= parts | turned and {*cut} & parts and {*cut} & turned
    assert cut == [crop((image, 7), np.random.default_rng(seed))[0].tobytes() for seed in range(60)]
    with pytest.raises(JobError, match="at least that size"):
        mm.data.random_crop(10)((image, 7), np.random.default_rng(0))


# ── tables ──


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("cache", [False, True])
def test_tables_are_read_row_by_row(tmp_path: Path, kind: str, cache: bool) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    expected = []
    for file in range(2):
        rows = [
            {"id": 20 * file + n, "x": [0.5 * n, 1.0], "text": f"wört {n}", "raw": bytes([n, n + 1])} for n in range(20)
        ]
        expected += rows
        schema = pa.schema(
            [("id", pa.int32()), ("x", pa.list_(pa.float64(), 2)), ("text", pa.string()), ("raw", pa.binary())]
        )
        table, path = pa.Table.from_pylist(rows, schema), tmp_path / f"{file}.{kind}"
        if kind == "parquet":
            pq.write_table(table, path, row_group_size=7)
        else:
            with pa.ipc.new_file(path, schema) as out:
                out.write_table(table, max_chunksize=7)
    data = mm.data.parquet(str(tmp_path / "*"))
    data = data.cache("1MB") if cache else data
    assert len(data) == 40
    for number in (39, 0, 22, 22, 5):
        found, row = data[np.array([number])], expected[number]
        assert found["id"].tolist() == [row["id"]] and found["id"].dtype == np.int32
        assert found["x"].tolist() == [row["x"]]
        assert bytes(found["text"][0]).decode() == row["text"] and bytes(found["raw"][0]) == row["raw"]
    only = mm.data.parquet([tmp_path / f"0.{kind}"], columns=["id"])
    assert len(only) == 20 and [*only[np.array([3])]] == ["id"]
    with pytest.raises(JobError, match="no column 'z'; choose from id, x, text, raw"):
        mm.data.parquet(tmp_path / f"0.{kind}", columns=["z"])[np.array([0])]


def test_an_empty_cell_is_named(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": [1, None], "y": [1, 2]}), tmp_path / "holes.parquet")
    with pytest.raises(JobError, match=r"column 'x' of .*holes.parquet has empty cells"):
        mm.data.parquet(str(tmp_path / "holes.parquet"))[np.array([0])]
    assert mm.data.parquet(str(tmp_path / "holes.parquet"), columns=["y"])[np.array([1])]["y"].tolist() == [2]


def test_a_row_group_is_decoded_once_per_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from meshmend.job.data import tables

    pq.write_table(pa.table({"x": np.arange(1000)}), tmp_path / "a.parquet", row_group_size=50)
    read = tables._read
    groups = []
    monkeypatch.setattr(tables, "_read", lambda *where: groups.append(where[1]) or read(*where))
    data = mm.data.parquet(tmp_path / "a.parquet").cache("1MB")
    order = np.random.default_rng(0).permutation(1000)
    assert data[order]["x"].tolist() == order.tolist()
    assert sorted(groups) == [*range(20)]


# ── streams ──


def numbers(shard: int, position: int) -> Iterator[int]:
    opened.append((shard, position))
    return iter(range(100 * shard + position, 100 * shard + LENGTHS[shard]))


LENGTHS = (40, 25, 60, 3)
opened: list[tuple[int, int]] = []


@given(st.integers(1, 5), st.integers(1, 6))
def test_a_stream_gives_each_sample_once_an_epoch_and_mostly_reads_on(lanes: int, lane_size: int) -> None:
    data = mm.data.stream(numbers, LENGTHS)
    order = Lanes(len(data), lanes * lane_size, lanes, 0, **order_of(data))
    steps = len(data) // order.batch
    opened.clear()
    found = [data[order.ids(step, lane)].tolist() for step in range(steps) for lane in range(lanes)]
    every = [100 * shard + n for shard, length in enumerate(LENGTHS) for n in range(length)]
    seen = [number for lane in found for number in lane]
    rest = data[order.ids(steps, 0)].tolist() if steps * order.batch < len(data) else []
    missing = len(data) - len(seen)
    assert sorted(seen)[:1] == [0] and len({*seen}) == len(seen) and {*seen} <= {*every}
    assert missing < order.batch and {*rest[:missing]} <= {*every} - {*seen}
    assert len(opened) <= lanes + 2 * len(LENGTHS) + 2  # one for each stretch, shard, and what is left at the end


def test_a_stream_is_read_again_by_whoever_takes_over() -> None:
    one, two = mm.data.stream(numbers, LENGTHS), mm.data.stream(numbers, LENGTHS)
    ids = np.array([38, 39, 40, 41])
    assert one[np.arange(30)].tolist() and one[ids].tolist() == two[ids].tolist() == [38, 39, 100, 101]


def test_a_stream_that_is_shorter_than_it_says_is_one_sentence() -> None:
    with pytest.raises(JobError, match="shard 0 ended at position 40"):
        mm.data.stream(numbers, (41,))[np.arange(41)]


@pytest.mark.parametrize(
    "stream", [iter([1, 2]), (n for n in range(3)), map(str, [1])], ids=["iterator", "generator", "map"]
)
def test_what_cannot_be_read_again_is_refused(stream: Any) -> None:
    with pytest.raises(JobError, match=r"mm\.data\.stream\(open, lengths\)"):
        mm.Job(stream, batch=2, lanes=1)
    with pytest.raises(JobError, match=r"mm\.data\.stream\(open, lengths\)"):
        mm.data.rows(stream)
    with pytest.raises(JobError, match="read only once"):
        mm.data.stream(stream, (3,))


# ── lengths ──


@given(st.integers(0, 9), st.booleans())
@settings(max_examples=30)
def test_lanes_are_padded_to_the_least_length_that_fits_and_by_length(seed: int, known: bool) -> None:
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 33, 64)
    texts = [{"tokens": np.full(n, i + 1), "label": i} for i, n in enumerate(lengths)]
    data = mm.data.rows(texts).pad([8, 16, 32], "tokens", lengths=lengths if known else None)
    order = Lanes(64, 32, 4, seed, **order_of(data))
    seen: list[int] = []
    widths = []
    for step in range(2):
        for lane in range(4):
            found = data[order.ids(step, lane)]
            longest = int(found["length"].max())
            width = found["tokens"].shape[1]
            assert width == min(one for one in (8, 16, 32) if one >= longest)
            assert found["length"].tolist() == lengths[found["label"]].tolist()
            assert ((found["tokens"] != 0).sum(1) == found["length"]).all()
            seen += found["label"].tolist()
            widths.append(width)
    assert sorted(seen) == [*range(64)]
    if known:
        assert widths[:4] == sorted(widths[:4]) and widths[4:] == sorted(widths[4:])


def test_padding_gives_a_tuple_one_more_part() -> None:
    data = mm.data.rows([(np.ones(2), 1), (np.ones(3), 2)]).pad([4], value=-1)
    x, label, length = data[np.arange(2)]
    assert x.tolist() == [[1, 1, -1, -1], [1, 1, 1, -1]] and (label.tolist(), length.tolist()) == ([1, 2], [2, 3])


# ── mistakes ──


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mm.data.arrays(np.ones(3), np.ones(4)), "same number"),
        (lambda: mm.data.rows(5), "len()"),
        (lambda: mm.data.rows([1], on_error="ignore"), "'raise' or 'skip'"),
        (lambda: mm.data.images("/nowhere"), "not a folder"),
        (lambda: mm.data.parquet([]), "no files"),
        (lambda: mm.data.parquet(__file__), "cannot be read as a table"),
        (lambda: mm.data.stream(numbers, ()), "lengths="),
        (lambda: mm.data.rows([1]).cache("much"), "20GB|bytes"),
        (lambda: mm.data.rows([1]).cache(0), "20GB"),
        (lambda: mm.data.rows([1]).cache("1MB").cache("1MB"), "one cache"),
        (lambda: mm.data.rows([1]).cache("1MB", folder="/nowhere"), "not a folder"),
        (lambda: mm.data.rows([1]).map(lambda sample, rng: sample + rng.random()).cache("1MB"), "put that map after"),
        (lambda: mm.data.rows([1]).pad([8, 4]), "in increasing order"),
        (lambda: mm.data.rows([1]).pad([8], lengths=np.ones(3, np.int64)), "give one length per sample"),
        (lambda: mm.data.rows([np.ones(9)]).pad([8])[np.array([0])], "add a longer one"),
        (lambda: mm.data.rows([5]).pad([8])[np.array([0])], "no array to pad"),
        (lambda: mm.data.rows([np.ones(1), np.ones(2)])[np.arange(2)], "pad them"),
        (lambda: mm.data.rows(["text"]).map(lambda sample: [sample, None, object()])[np.array([0])], "a map"),
        (lambda: mm.data.rows([object()]).cache("1MB")[np.array([0])], "convert it in a map"),
    ],
)
def test_mistakes_are_one_sentence(make: Any, message: str) -> None:
    with pytest.raises(JobError, match=message):
        make()


def test_a_map_before_the_cache_that_draws_by_itself_is_found_out(tmp_path: Path) -> None:
    """By the first other worker: what is in the cache is not what it would have decoded."""
    random = np.random.default_rng(0)

    def made() -> mm.data.Data:
        return mm.data.rows(range(9)).map(lambda sample: sample + random.normal()).cache("1MB")

    one, two = made(), made()
    one.open(CacheHome(tmp_path)).lane([0], random)
    home = CacheHome(tmp_path)
    two.open(home).name = one.open(home).name  # in the other worker's process it is the same
    with pytest.raises(JobError, match="depend on the sample alone"):
        two[np.array([3])]


def test_caches_of_different_maps_do_not_meet() -> None:
    def scaled(by: int) -> Any:
        return lambda sample: sample * by

    maps = [
        scaled(2),
        scaled(3),
        lambda sample: sample * 2,
        lambda sample: [n + 1 for n in (sample, 4)],
        mm.data.decode_image(8),
    ]
    names = {mm.data.rows([1]).map(one).cache("1MB").recipe.identity for one in maps}
    assert len(names) == len(maps)
    assert Map(scaled(2)).identity == Map(scaled(2)).identity and "0x" not in Map(maps[3]).identity
