"""Transformer-big: Vaswani et al. (arXiv 1706.03762), English to German as in MLPerf: one table of 33,708 words.

An example is a pair of texts of 256 tokens each, into which MLPerf's training packs sentences: 566,340 examples are an
epoch. Evaluation has single sentences of at most 97 tokens.
"""

from __future__ import annotations

from dataclasses import replace

from meshmend.simulator.step.models.attention import attend, feed
from meshmend.simulator.step.models.layers import Model, Trace

WORDS, WIDTH, HIDDEN, BLOCKS = 33708, 1024, 4096, 6
LENGTH = 256


def transformer() -> Model:
    """210,804,736 parameters: the words' table serves the source, the target and the output."""
    trace = Trace()
    trace.params("words", WORDS * WIDTH, split="features", reduced=2 * LENGTH * WIDTH)
    for number in range(BLOCKS):
        attend(trace, f"encoder{number}.attention", WIDTH, LENGTH, LENGTH, bias=False)
        feed(trace, f"encoder{number}.dense", WIDTH, HIDDEN, LENGTH)
    trace.params("encoder.norm", 2 * WIDTH)
    for number in range(BLOCKS):
        attend(trace, f"decoder{number}.attention", WIDTH, LENGTH, LENGTH, bias=False)
        attend(trace, f"decoder{number}.source", WIDTH, LENGTH, LENGTH, bias=False)
        feed(trace, f"decoder{number}.dense", WIDTH, HIDDEN, LENGTH)
    trace.params("decoder.norm", 2 * WIDTH)
    trace.dense("output", WIDTH, WORDS, times=LENGTH, bias=False, split="features")
    trace.layers[-1] = replace(trace.layers[-1], params=0)
    return Model(
        "transformer",
        "Transformer-big",
        f"an example is a pair of packed texts of {LENGTH} tokens each",
        tuple(trace.layers),
        optimizer="adam",
        input_bytes=4 * 2 * LENGTH,
        most_cores=16,
    )
