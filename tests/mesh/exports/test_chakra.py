"""Chakra traces, decoded by Google's protobuf with the schema's own numbers and run in random orders."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from meshmend import Mesh, PlanError, plan
from meshmend.mesh.exports.chakra import chakra_traces
from meshmend.mesh.planners import ALGORITHMS
from tests.mesh.exports.test_exports import random_plans

FIELDS = {
    "GlobalMetadata": [("version", 1, "STRING", "OPTIONAL")],
    "AttributeProto": [
        ("name", 1, "STRING", "OPTIONAL"), ("int32_val", 7, "INT32", "OPTIONAL"), ("int64_val", 9, "INT64", "OPTIONAL"),
        ("uint64_val", 13, "UINT64", "OPTIONAL"), ("bool_val", 27, "BOOL", "OPTIONAL"),
    ],
    "Node": [
        ("id", 1, "UINT64", "OPTIONAL"), ("name", 2, "STRING", "OPTIONAL"), ("type", 3, "INT32", "OPTIONAL"),
        ("ctrl_deps", 4, "UINT64", "REPEATED"), ("data_deps", 5, "UINT64", "REPEATED"),
        ("attr", 10, "MESSAGE", "REPEATED"),
    ],
}  # fmt: skip
"""What et_def.proto of mlcommons/chakra says, of what we use."""


def schema() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="et_part.proto", package="chakra_part", syntax="proto3")
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind, label in fields:
            made = message.field.add(name=field, number=number)
            made.type = getattr(made, f"TYPE_{kind}")
            made.label = getattr(made, f"LABEL_{label}")
            if kind == "MESSAGE":
                made.type_name = ".chakra_part.AttributeProto"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {n: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"chakra_part.{n}")) for n in FIELDS}


SCHEMA = schema()


def decoded(trace: bytes) -> list[Any]:
    """The nodes of a trace: messages, each with its length before it."""
    at, messages = 0, []
    while at < len(trace):
        size = shift = 0
        while True:
            byte = trace[at]
            at, size, shift = at + 1, size | (byte & 127) << shift, shift + 7
            if byte < 128:
                break
        messages.append(trace[at : at + size])
        at += size
    assert SCHEMA["GlobalMetadata"].FromString(messages[0]).version
    return [SCHEMA["Node"].FromString(one) for one in messages[1:]]


def attribute(node: Any, name: str) -> int:
    found = next(one for one in node.attr if one.name == name)
    return int(found.int32_val or found.int64_val or found.uint64_val)


def run(traces: list[bytes], parts: np.ndarray, seed: int) -> np.ndarray:
    """What each rank holds in the end, with nodes done in a random order among those that can be done."""
    random, wires = np.random.default_rng(seed), {}
    ranks = [decoded(trace) for trace in traces]
    values: list[dict[int, int]] = [{} for _ in ranks]
    held = parts.copy()
    waiting = [(rank, node) for rank, nodes in enumerate(ranks) for node in nodes]
    assert all(node.id == i for nodes in ranks for i, node in enumerate(nodes))
    while waiting:
        later = []
        for i in random.permutation(len(waiting)):
            rank, node = waiting[i]
            chunk, needs = int(node.name.split()[-1]), list(node.data_deps)
            ends = [attribute(node, f"comm_{end}") for end in ("src", "dst")] if node.type in (5, 6) else []
            key = (*ends, attribute(node, "comm_tag")) if ends else ()
            if any(one not in values[rank] for one in needs) or (node.type == 6 and key not in wires):
                later.append((rank, node))
                continue
            if node.type == 5:
                assert ends[0] == rank and key not in wires, "a tag twice"
                value = values[rank][needs[0]] if needs else int(parts[rank, chunk])
                wires[key] = value, attribute(node, "comm_size")
            elif node.type == 6:
                value, size = wires.pop(key)
                assert ends[1] == rank and size == attribute(node, "comm_size")
                held[rank, chunk] = value
            else:
                own = 0 if len(needs) == 2 else int(parts[rank, chunk])
                value = sum(values[rank][one] for one in needs) + own
                held[rank, chunk] = value
            values[rank][node.id] = value
        assert len(later) < len(waiting), "a deadlock"
        waiting = later
    assert not wires, "sent and never received"
    return held


def test_random_meshes_give_the_sum_in_any_order() -> None:
    for number, made in enumerate(random_plans()[:40]):
        parts = np.random.default_rng(number).integers(-99, 99, (len(made.mesh.live), 4 * len(made)))
        traces = chakra_traces(made, 4096.0 * parts.shape[1])
        assert (run(traces, parts, number) == parts.sum(0)).all(), made.mesh


def test_a_broken_trace_is_found() -> None:
    made = ALGORITHMS["trees"](Mesh(3, 3), flows=3)
    parts = np.random.default_rng(0).integers(1, 99, (9, 12))
    traces = chakra_traces(made, 1e6)
    assert b"comm_tag" in traces[4]
    with pytest.raises(AssertionError, match="deadlock"):
        run([*traces[:4], traces[4][:8], *traces[5:]], parts, 0)


def test_what_does_not_fit_says_the_limit_and_what_would() -> None:
    with pytest.raises(
        PlanError, match=r"500,000 transfers, but this plan of \d+ flows has [\d,]+: .* such as --flows 16"
    ):
        chakra_traces(plan("16x16 -2x2@2,2", algorithm="ring"), 1e8)
    made = ALGORITHMS["trees"](Mesh(3, 3), flows=3)
    with pytest.raises(PlanError, match=r"11 bytes is cut into 12 chunks .* give --nbytes 12 or more"):
        chakra_traces(made, 11)
