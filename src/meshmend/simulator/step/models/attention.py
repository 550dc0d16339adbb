"""Blocks of attention and of dense layers, for the two text models, and how model parallelism divides them.

Query, key and value by heads, the first kernel of the dense block by columns and the second by rows (as in arXiv
2011.03641): then only the outputs of the two blocks are summed over the replica, once forward and once backward.
"""

from __future__ import annotations

from meshmend.simulator.step.models.layers import Trace


def attend(trace: Trace, name: str, width: int, length: int, source: int, *, bias: bool) -> None:
    """One attention of `length` tokens over `source` tokens, and its norm."""
    for part, tokens in (("query", length), ("key", source), ("value", source)):
        trace.dense(f"{name}.{part}", width, width, times=tokens, bias=bias, split="features")
    trace.products(f"{name}.scores", 2 * 2.0 * length * source * width, split="features")
    trace.dense(f"{name}.out", width, width, times=length, bias=bias, split="features", reduced=length * width)
    trace.params(f"{name}.norm", 2 * width)


def feed(trace: Trace, name: str, width: int, hidden: int, length: int) -> None:
    """Two dense layers, and their norm."""
    trace.dense(f"{name}.in", width, hidden, times=length, split="features")
    trace.dense(f"{name}.out", hidden, width, times=length, split="features", reduced=length * width)
    trace.params(f"{name}.norm", 2 * width)
