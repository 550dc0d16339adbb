"""BERT-large: Devlin et al. (arXiv 1810.04805), in pre-training as in MLPerf: 512 tokens, of which 76 are guessed.

The body alone has 334,092,288 parameters; with the pooler 335,141,888; with both heads of pre-training 336,226,108.
The guessing head shares its kernel with the word table, which therefore counts once.
"""

from __future__ import annotations

from dataclasses import replace

from meshmend.simulator.step.models.attention import attend, feed
from meshmend.simulator.step.models.layers import Model, Trace

WORDS, WIDTH, HIDDEN, BLOCKS = 30522, 1024, 4096, 24
LENGTH, GUESSED = 512, 76


def bert() -> Model:
    """336,226,108 parameters with pooler and heads."""
    trace = Trace()
    trace.params("words", WORDS * WIDTH, split="features", reduced=LENGTH * WIDTH)
    trace.params("places", LENGTH * WIDTH)
    trace.params("segments", 2 * WIDTH)
    trace.params("embedding.norm", 2 * WIDTH)
    for number in range(BLOCKS):
        attend(trace, f"block{number}.attention", WIDTH, LENGTH, LENGTH, bias=True)
        feed(trace, f"block{number}.dense", WIDTH, HIDDEN, LENGTH)
    trace.dense("pooler", WIDTH, WIDTH)
    trace.dense("next", WIDTH, 2)
    trace.dense("guess.dense", WIDTH, WIDTH, times=GUESSED)
    trace.params("guess.norm", 2 * WIDTH)
    trace.dense("guess.words", WIDTH, WORDS, times=GUESSED, split="features")
    trace.layers[-1] = replace(trace.layers[-1], params=WORDS)
    return Model(
        "bert",
        "BERT-large",
        f"pre-training; an example is a text of {LENGTH} tokens, {GUESSED} of them guessed",
        tuple(trace.layers),
        optimizer="lamb",
        input_bytes=4 * (3 * LENGTH + 3 * GUESSED + 1),
        most_cores=16,
    )
