"""Whether an optimizer works element by element, found by trying it: a state can be cut into slices only then.

What an optimizer is called says little: a chain of transformations, a mask or a schedule may make it depend on a whole
tensor, or not. So it is run on tensors as they are, and on the same numbers flattened and cut in two, with the same
gradients for a few steps. If the weights come out the same, cutting makes no difference:

    leaves (6, 8), (5,)  ──► init, update, update, …  ─┐
                                                      ├─ the same?
    0 … 52, cut in two   ──► init, update, update, …  ─┘

Adam passes. Clipping by the global norm, LARS and LAMB depend on the numbers of other slices; Muon and Shampoo on the
shape of a matrix; noise that is drawn for each tensor on where the cut is: none of them passes.

"The same" leaves room for rounding. Compiled loops may treat the last few numbers of an array apart (XLA on a CPU does:
Adam's last bits depend on how long an array is), which says nothing about what the optimizer does. An executor that
wants the same bits for any slicing has it work on whole blocks, padded to one length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Tree = dict[str, Floats]
Apply = Callable[[Tree, Tree, Any], tuple[Tree, Any]]
"""One step: (weights, gradients, state or None at first) → (weights, state)."""

SHAPES = ((6, 8), (5,), (), (3, 2, 4), (33,))
"""Of the tensors that it is tried on: matrices, vectors, a scalar, and lengths with and without a remainder."""
STEPS = 3
CUTS = (16, 37, 64)
"""Where the flat numbers are cut: on a border of a tensor, and within one."""


@dataclass(frozen=True)
class Trial:
    """What came of it."""

    same_bits: bool
    difference: float
    """The largest, relative to the largest weight that changed; NaN where the shapes or the finiteness differ."""

    @property
    def elementwise(self) -> bool:
        """Whether what differs can be rounding alone, as where a compiler treats the last numbers of an array apart."""
        return self.same_bits or self.difference < 1e-5


def of_transformation(transformation: Any) -> Apply:
    """A step of an optax transformation: anything with `init(params)` and `update(grads, state, params)`."""

    def apply(weights: Tree, gradients: Tree, state: Any) -> tuple[Tree, Any]:
        state = transformation.init(weights) if state is None else state
        updates, state = transformation.update(gradients, state, weights)
        return {
            name: np.asarray(value + np.asarray(updates[name], value.dtype)) for name, value in weights.items()
        }, state

    return apply


def of_functions(init: Callable[[Floats], Any], update: Callable[[Floats, Floats, Any], tuple[Floats, Any]]) -> Apply:
    """A step of an optimizer of arrays: `init(weights)`, and `update(weights, gradients, state)` → both, new."""

    def apply(weights: Tree, gradients: Tree, state: Any) -> tuple[Tree, Any]:
        state = {name: init(value) for name, value in weights.items()} if state is None else state
        done = {name: update(value, gradients[name], state[name]) for name, value in weights.items()}
        return {name: np.asarray(one) for name, (one, _) in done.items()}, {
            name: one for name, (_, one) in done.items()
        }

    return apply


def try_out(apply: Apply) -> Trial:
    """Run an optimizer on whole tensors and on slices of them."""
    dice = np.random.default_rng(17)
    sizes = [int(np.prod(shape, dtype=int)) for shape in SHAPES]
    names = [str(number) for number in range(len(SHAPES))]
    bounds = np.cumsum([0, *sizes])
    start = dice.standard_normal(bounds[-1]).astype(np.float32)
    # From tiny to huge, with zeros: where a rule depends on a norm or a mean, some number shows it.
    scale = np.float32(10.0) ** dice.integers(-4, 3, (STEPS, len(start))).astype(np.float32)
    gradients = (dice.standard_normal((STEPS, len(start))) * scale).astype(np.float32)
    gradients[:, ::11] = 0

    def shaped(flat: Floats) -> Tree:
        parts = [
            flat[begin : begin + size].reshape(shape) for begin, size, shape in zip(bounds, sizes, SHAPES, strict=False)
        ]
        return dict(zip(names, parts, strict=True))

    whole = _trained(apply, shaped(start), [shaped(one) for one in gradients])
    expected = np.concatenate([np.asarray(whole[name]).reshape(-1) for name in names])
    worst = Trial(True, 0.0)
    for cut in CUTS:
        pieces = [
            _trained(apply, {"slice": start[part]}, [{"slice": one[part]} for one in gradients])["slice"]
            for part in (slice(0, cut), slice(cut, None))
        ]
        trial = _compared(expected, np.concatenate([piece.reshape(-1) for piece in pieces]), start)
        worst = trial if not trial.same_bits and not trial.difference <= worst.difference else worst
        worst = Trial(worst.same_bits and trial.same_bits, worst.difference)
    return worst


def _trained(apply: Apply, weights: Tree, gradients: list[Tree]) -> Tree:
    state: Any = None
    for one in gradients:
        weights, state = apply(weights, one, state)
    return weights


def _compared(expected: Floats, found: Floats, start: Floats) -> Trial:
    if expected.shape != found.shape or (np.isfinite(expected) != np.isfinite(found)).any():
        return Trial(False, float("nan"))
    if expected.dtype == found.dtype and expected.tobytes() == found.tobytes():
        return Trial(True, 0.0)
    fine = np.isfinite(expected)
    changed = np.abs(expected - start)[fine].max(initial=0)
    return Trial(False, float(np.abs(expected - found)[fine].max(initial=0) / (changed or 1)))
