"""Notes of rounds of exact sums, to be judged."""

from __future__ import annotations

import numpy as np

from meshmend.job.reduction.exact import COARSE, FLOOR, FRESH, ROOM, Exact


def any_notes(random: np.random.Generator, grid: Exact) -> np.ndarray:
    """Notes as rounds leave them, and ones at the edges: near a block's limit, between octaves, with many digits."""
    digits, octaves = grid.digits
    blocks, fresh = len(grid.leaf_of), grid.state() == FRESH
    notes = np.zeros((blocks, digits + 1), np.int32)
    most = (1 << 31 - 1) - 1
    kinds = random.choice([[0, 6, 7], [3, 4, 5, 6, 7], [0, 0, 6, 6, 7, 2], [0, 6, 7, 3, 1]][int(random.integers(4))], 3)
    for block in range(blocks):
        kind = random.choice(kinds)
        if kind == 0:
            continue
        if kind == 1:  # any digits
            notes[block, :-2] = random.integers(0, most, digits - 1) * (random.random(digits - 1) < 0.4)
        elif kind == 2:  # many ones: whether a float64 rounds up decides the octave
            high = random.integers(2, digits - 1)
            notes[block, high] = (1 << random.integers(1, 30)) - 1
            notes[block, :high] = (1 << octaves) - 1 - (random.random(high) < 0.1)
        else:  # close to the limit of this block's grid, or of another one
            exponent = random.integers(-100, 60) if fresh[block] else grid.exponents[block]
            away = random.choice([0, 0, -1, 1, -4096, 4096, -(1 << 20)]) if kind < 6 else 0
            units = int(ROOM) + int(away) >> (0 if kind < 6 else int(random.integers(1, 12)))
            lowest = int(exponent) - (FLOOR - COARSE)  # of this many units, in places of the lowest digit
            whole = units << lowest if lowest >= 0 else units >> -lowest
            for digit in range(digits):
                notes[block, digit] = whole >> octaves * digit & ((1 << octaves) - 1)
    if random.random() < 0.05:
        notes[random.integers(blocks), -1] = 1
    return notes
