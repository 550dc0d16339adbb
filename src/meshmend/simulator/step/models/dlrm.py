"""DLRM: Naumov et al. (arXiv 1906.00091) as in MLPerf: clicks of one terabyte, 26 tables of at most 40 M rows.

Only the dense part is summed: the tables are divided over the chips, each row has one owner, and rows and their
gradients go between owner and example (`exchanged`).
"""

from __future__ import annotations

from itertools import pairwise

from meshmend.simulator.step.models.layers import Model, Trace

ROWS = (
    39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10, 2208, 11938, 155, 4, 976,
    14, 39979771, 25641295, 39664984, 585935, 12972, 108, 36,
)  # fmt: skip
WIDTH = 128
BOTTOM = (13, 512, 256, WIDTH)
TOP = (1024, 1024, 512, 256, 1)


def dlrm() -> Model:
    """2,368,897 parameters that are summed, and 24.0 G in tables."""
    trace = Trace()
    for number, rows in enumerate(ROWS):
        trace.params(f"table{number}", rows * WIDTH, split="features", summed=False)
    for number, (inputs, outputs) in enumerate(pairwise(BOTTOM)):
        trace.dense(f"bottom{number}", inputs, outputs)
    vectors = len(ROWS) + 1
    pairs = vectors * (vectors - 1) // 2
    trace.products("pairs", 2.0 * pairs * WIDTH)
    for number, (inputs, outputs) in enumerate(pairwise((WIDTH + pairs, *TOP))):
        trace.dense(f"top{number}", inputs, outputs)
    return Model(
        "dlrm",
        "DLRM",
        "tables of at most 40 M rows, 128 wide; an example is one click",
        tuple(trace.layers),
        optimizer="sgd",
        input_bytes=4 * (BOTTOM[0] + len(ROWS) + 1),
        most_cores=1,
        exchanged=len(ROWS) * WIDTH,
    )
