"""Machines by name: their sizes and what joins their ends, each with where that was said.

Speeds of their links are in `planners/cost.py`, under the name of the machine's family.
"""

from __future__ import annotations

PRESETS = {
    "tpu-v3-512": "16x32",
    "tpu-v3-1024": "32x32",  # 1024 chips as a mesh, which is what arXiv 2011.03605 gives figures for
    "tpu-v3-pod": "32x32 wrap=xy",  # the same 1024 chips as a whole pod, which is a torus
    "tpu-v3-multipod": "128x32 wrap=y",
    # 4x4x4 chips and more are tori, fewer are meshes (cloud.google.com/tpu/docs/v4, v5p, tpu7x)
    "tpu-v4-cube": "4x4x4 wrap=xyz",
    "tpu-v4-pod": "16x16x16 wrap=xyz",
    "tpu-v5p-cube": "4x4x4 wrap=xyz",
    "tpu-v5p-largest": "16x16x24 wrap=xyz",
    "tpu-v6e-pod": "16x16 wrap=xy",
    "tpu7x-cube": "4x4x4 wrap=xyz",
    "tpu7x-pod": "16x24x24 wrap=xyz",
    # A server is a torus of 4x4, and four make one of three dimensions (aws-neuron-sdk, collectives.rst). That links
    # between servers have half the speed is deduced: 4 of 128 and 2 of 64 GB/s each way are the 1.28 TB/s per chip
    # that awsdocs-neuron gives (about-neuron/arch/neuron-hardware/trainium2)
    "trn2": "4x4 wrap=xy",
    "trn2-ultra": "4x4x4 wrap=xyz ~0.5@z",
    # Wormhole Galaxy, and four of them (tt-metal, TT-Fabric-Architecture.md); wraps are a matter of cabling
    "galaxy": "8x4",
    "galaxy-torus": "8x4 wrap=xy",
    "quad-galaxy": "16x8",
}
"""TPU-v3 sizes as run for MLPerf 0.7: hosts of 4x2 chips, boards of 2x2. Three-dimensional TPUs have hosts of 2x2x1."""
