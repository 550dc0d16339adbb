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
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from meshmend.errors import JobError
from meshmend.job.reduction.norms import Norm
from meshmend.job.reduction.pieces import pieces_of

Floats = npt.NDArray[np.float32]
Tree = dict[str, Floats]
Apply = Callable[[Tree, Tree, Any], tuple[Tree, Any]]
"""One step: (weights, gradients, state or None at first) → (weights, state)."""

SHAPES = ((6, 8), (5,), (), (3, 2, 4), (33,))
"""Of the tensors that it is tried on: matrices, vectors, a scalar, and lengths with and without a remainder."""
MATRICES = ((6, 8), (4, 5), (3, 3))
"""For optimizers that take nothing else."""
STEPS = 3
CUTS = (16, 37, 64)
"""Where the flat numbers are cut: on a border of a tensor, and within one."""


@dataclass(frozen=True)
class Trial:
    """What came of it."""

    same_bits: bool
    difference: float
    """The largest, relative to the largest weight that changed; NaN where the shapes or the finiteness differ."""
    wants: tuple[int, ...] = ()
    """Of how many arrays it asked for norms, stage by stage."""

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


NAMES = [str(number) for number in range(len(SHAPES))]
SIZES = [int(np.prod(shape, dtype=int)) for shape in SHAPES]
BOUNDS = np.cumsum([0, *SIZES])


def _numbers() -> tuple[Floats, Floats]:
    """Weights to begin with, and gradients for a few steps.

    From tiny to huge, with zeros: where a rule depends on a norm or a mean, some number shows it.
    """
    dice = np.random.default_rng(17)
    start = dice.standard_normal(BOUNDS[-1]).astype(np.float32)
    scale = np.float32(10.0) ** dice.integers(-4, 3, (STEPS, len(start))).astype(np.float32)
    gradients = (dice.standard_normal((STEPS, len(start))) * scale).astype(np.float32)
    gradients[:, ::11] = 0
    return start, gradients


def _shaped(flat: Floats, shapes: tuple[tuple[int, ...], ...] = SHAPES) -> Tree:
    """Tensors of these shapes, from the first of these numbers."""
    ends = np.cumsum([int(np.prod(shape, dtype=int)) for shape in shapes])
    parts = np.split(flat, ends)[: len(shapes)]
    return {str(number): part.reshape(shape) for number, (part, shape) in enumerate(zip(parts, shapes, strict=True))}


def _flat(tree: Tree) -> Floats:
    return np.concatenate([np.asarray(tree[name]).reshape(-1) for name in tree])


def try_out(apply: Apply) -> Trial:
    """Run an optimizer on whole tensors and on slices of them."""
    start, gradients = _numbers()
    expected = _flat(_trained(apply, _shaped(start), [_shaped(one) for one in gradients]))
    trials = []
    for cut in CUTS:
        pieces = [
            _trained(apply, {"slice": start[part]}, [{"slice": one[part]} for one in gradients])
            for part in (slice(0, cut), slice(cut, None))
        ]
        trials.append(_compared(expected, np.concatenate([_flat(piece) for piece in pieces]), start))
    return _worst(trials)


def try_tensors(apply: Apply, shapes: tuple[tuple[int, ...], ...] = SHAPES) -> Trial:
    """Run an optimizer on all tensors at once and on one after another."""
    start, steps = _numbers()
    first, gradients = _shaped(start, shapes), [_shaped(one, shapes) for one in steps]
    whole = _flat(_trained(apply, first, gradients))
    apart = [
        _flat(_trained(apply, {name: value}, [{name: one[name]} for one in gradients])) for name, value in first.items()
    ]
    return _compared(whole, np.concatenate(apart), _flat(first))


def try_with_norms(init: Callable[[Floats], Any], update: Callable[..., Any]) -> Trial:
    """Run an optimizer that asks for norms on all numbers at once and on slices of them."""
    start, gradients = _numbers()
    expected, wants = _trained_with_norms(init, update, start, gradients, [0, len(start)])
    trials = []
    for cut in CUTS:
        found, asked = _trained_with_norms(init, update, start, gradients, [0, cut, len(start)])
        trials.append(_compared(expected, found, start))
        if asked != wants:
            raise _uneven(wants, asked)
    return replace(_worst(trials), wants=wants)


def _trained_with_norms(
    init: Callable[[Floats], Any], update: Callable[..., Any], weights: Floats, gradients: Floats, bounds: list[int]
) -> tuple[Floats, tuple[int, ...]]:
    """The weights after all steps, and how many arrays were yielded at each stage."""
    parts = [slice(*pair) for pair in pairwise(bounds)]
    tensors = [(name, tuple(shape)) for name, shape in zip(NAMES, SHAPES, strict=True)]
    pieces = [pieces_of(tensors, part.start, part.stop) for part in parts]
    states = [init(weights[part]) for part in parts]
    wants: list[tuple[int, ...]] = []
    for one in gradients:
        work = [
            update(weights[part], one[part], state, piece)
            for part, state, piece in zip(parts, states, pieces, strict=True)
        ]
        asked: list[int] = []
        answers: list[Any] = [None] * len(parts)
        done: dict[int, tuple[Any, Any]] = {}
        while len(done) < len(parts):
            found = []
            for place, (generator, answer) in enumerate(zip(work, answers, strict=True)):
                try:
                    yielded = generator.send(answer)
                    found.append(yielded if isinstance(yielded, tuple) else (yielded,))
                except StopIteration as end:
                    done[place] = end.value
            if found:
                if len(found) < len(parts) or len({len(arrays) for arrays in found}) > 1:
                    raise _uneven(tuple(map(len, found)), ())
                asked.append(len(found[0]))
                norms = [_norm(np.concatenate(arrays)) for arrays in zip(*found, strict=True)]
                each = [[Norm(everything, piece.spread(by)) for everything, by in norms] for piece in pieces]
                answers = [one[0] if len(one) == 1 else tuple(one) for one in each]
        weights = np.concatenate([np.asarray(done[place][0]) for place in range(len(parts))])
        states = [done[place][1] for place in range(len(parts))]
        wants.append(tuple(asked))
    if len(set(wants)) > 1 or not wants[0]:
        raise _uneven(wants[0], wants[-1])
    return weights, wants[0]


def _norm(flat: Floats) -> tuple[np.float32, list[float]]:
    squares = [float(np.sum(flat[begin:end].astype(np.float64) ** 2)) for begin, end in pairwise(BOUNDS)]
    return np.float32(np.sqrt(sum(squares))), [float(np.sqrt(one)) for one in squares]


def _uneven(some: tuple[int, ...], others: tuple[int, ...]) -> JobError:
    return JobError(
        f"the update, a generator, requested norms of {list(some)} arrays per stage for one slice or step but "
        f"{list(others)} for another; yield the same number in every step and for every slice, and at least once"
    )


def _worst(trials: list[Trial]) -> Trial:
    worst = Trial(True, 0.0)
    for trial in trials:
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
