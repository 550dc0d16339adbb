"""A committed state has the leaves of the shared one: a state that nobody could load is refused in that very step."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import meshmend as mm
from meshmend.job.frameworks.arrays import TreeState
from meshmend.job.frameworks.jax.state import JaxState
from meshmend.job.state.codec import decode, encode
from meshmend.job.state.kinds import Kinds

ROWS = np.ones((8, 4), np.float32)
ZEROS = np.zeros(4, np.float32)


def committed(shared: Any, state: Any) -> mm.Job:
    """A job after a step that ends in this state."""
    with mm.Job(ROWS, batch=4, lanes=2) as job:
        job.share(shared)
        job.sum(lambda lane: lane.sum(0))
        job.commit(state)
    return job


@pytest.mark.parametrize(
    "shared, state, said",
    [
        (ZEROS, ZEROS - np.float64(0.1) * ZEROS.astype(float), r"leaf 'value' as float64\[4\].*float32\[4\].*astype"),
        (ZEROS, ZEROS[:2], r"leaf 'value' as float32\[2\], but job.share was given float32\[4\].*same shape"),
        (ZEROS, jnp.zeros(4, jnp.bfloat16), r"bfloat16\[4\].*float32\[4\]"),
        (jnp.zeros(4), np.zeros(4), r"float64\[4\].*float32\[4\]"),
        ({"w": ZEROS, "n": 0}, {"w": ZEROS, "n": 0.5}, r"leaf 'n' as float64\[\].*int64\[\]"),
        ({"w": ZEROS, "m": None}, {"w": ZEROS, "m": ZEROS}, "leaf 'm', which job.share was not given.*share it too"),
        ({"w": ZEROS, "m": ZEROS}, {"w": ZEROS}, "without leaf 'm', which job.share was given"),
        ([ZEROS], [ZEROS, ZEROS], "leaf '1', which job.share was not given"),
    ],
)
def test_a_state_that_no_replacement_could_load_is_refused(shared: Any, state: Any, said: str) -> None:
    with pytest.raises(mm.JobError, match=said) as error:
        committed(shared, state)
    assert "no replacement and no --resume could load it" in str(error.value)


@pytest.mark.parametrize(
    "shared, state",
    [
        (0.0, np.float64(1)),
        (0, 7),
        (np.zeros((), np.float32), np.float32(1)),
        (ZEROS, jnp.ones(4)),
        ({"a": None, "b": ZEROS}, {"b": ZEROS, "a": None}),
        ([ZEROS, ()], (ZEROS, [])),
        (ZEROS, ZEROS.astype(">f4")),
        ({}, {}),
    ],
)
def test_what_can_be_loaded_is_taken(shared: Any, state: Any) -> None:
    assert committed(shared, state).step == 1


@pytest.mark.parametrize("kind", [TreeState, JaxState])
def test_a_refused_state_leaves_the_last_one(kind: type[TreeState]) -> None:
    framework = kind(jnp.zeros(4))
    framework.commit((jnp.ones(4),))
    with pytest.raises(mm.JobError, match="was given"):
        framework.commit((jnp.ones(5),))
    np.testing.assert_array_equal(framework.leaves()[0][1], np.ones(4))
    framework.adopt([("value", np.full(4, 2, np.float32))])
    framework.commit((jnp.ones(4),))


@pytest.mark.parametrize(
    "state, said",
    [
        ({"a": jnp.ones(5), "b": jnp.ones(2)}, "leaf 'a'"),
        ({"a": jnp.ones(4), "b": jnp.ones(2, jnp.bfloat16)}, "leaf 'b'"),
        ({"a": jnp.ones(4), "c": jnp.ones(2)}, "without leaf 'b'"),
        ({"a": jnp.ones(4)}, "without leaf 'b'"),
        ({"a": jnp.ones(4), "b": np.ones(2)}, "leaf 'b'"),
    ],
)
def test_what_was_fine_often_is_still_looked_at(state: Any, said: str) -> None:
    framework = JaxState({"a": jnp.zeros(4), "b": jnp.zeros(2)})
    for value in range(3):
        good = {"a": jnp.full(4, value, jnp.float32), "b": jnp.full(2, value, jnp.float32)}
        framework.commit((good,))
        assert [name for name, _ in framework.leaves()] == ["a", "b"] and framework.shared is good
    with pytest.raises(mm.JobError, match=said):
        framework.commit((state,))
    donated = {"a": jnp.ones(4), "b": jnp.ones(2)}
    donated["b"].delete()
    with pytest.raises(mm.JobError, match="leaf 'b' of the committed state was donated"):
        framework.commit((donated,))
    np.testing.assert_array_equal(framework.leaves()[0][1], np.full(4, 2, np.float32))


trees = st.dictionaries(
    st.sampled_from("abc"),
    st.one_of(
        st.none(),
        st.integers(0, 3),
        st.floats(0, 1),
        st.builds(np.zeros, st.sampled_from([(), 1, (1, 2), (2, 1)]), st.sampled_from(["f4", "f8", "i4", "i8"])),
    ),
)


@given(trees, trees)
def test_it_refuses_just_what_a_newcomer_would(shared: Any, state: Any) -> None:
    """The oracle is the code that loads the state of another worker."""
    mine, other = TreeState(shared), TreeState(state)
    data = np.frombuffer(b"".join(bytes(piece) for piece in encode(other.leaves())), np.uint8)
    try:
        decode(data, mine.template())
        fits = True
    except mm.JobError:
        fits = False
    try:
        mine.commit((state,))
    except mm.JobError:
        assert not fits
    else:
        assert fits


def test_a_model_of_another_type_is_refused() -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.Adam(model.parameters())  # its state is empty before the first step
    with mm.Job(ROWS, batch=4, lanes=2) as job:
        job.share(model, optimizer)
        for _ in job.steps(2):
            job.sum(lambda lane: model(torch.from_numpy(lane)).sum().backward())
            optimizer.step()
            job.commit()
        with pytest.raises(mm.JobError, match=r"'model.weight' as float64\[1, 4\].*\.to\(torch\.float32\)"):
            for _ in job.steps(3):
                job.sum(lambda lane: model(torch.from_numpy(lane)).sum().backward())
                model.double()
                job.commit()
        model.float()


def test_something_that_is_no_array_is_left_to_the_digest() -> None:
    Kinds([("value", ZEROS)]).check([("value", object())])
    with pytest.raises(mm.JobError, match="is a object, not an array"):
        committed(ZEROS, object())
