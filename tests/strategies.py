"""Hypothesis strategies and small checks that several tests use."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from meshmend import Mesh


@st.composite
def meshes(draw: st.DrawFn, most: int = 12) -> Mesh:
    """Any connected mesh up to `most` x `most`: any wrap, any dead chips and links."""
    rows, cols = draw(st.integers(1, most)), draw(st.integers(1, most))
    wrap = (rows > 2 and draw(st.booleans()), cols > 2 and draw(st.booleans()))
    mesh = Mesh(rows, cols, wrap)
    chips = draw(st.sampled_from([0.0, 0.03, 0.1, 0.3]))
    links = draw(st.sampled_from([0.0, 0.03, 0.1, 0.3]))
    seed = draw(st.integers(0, 2**32 - 1))
    if mesh.size * chips < mesh.size - 1:
        mesh = mesh.fail_random(seed, chips=chips)
    return mesh.fail_random(seed + 1, links=links).largest()


def numbers(seed: int, rows: int, width: int) -> np.ndarray:
    """Integers whose sums are exact."""
    return np.random.default_rng(seed).integers(-(10**6), 10**6, (rows, width))
