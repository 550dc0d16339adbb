"""Machines by name. Sizes as run for MLPerf 0.7: TPU-v3 slices, hosts of 4x2 chips, boards of 2x2."""

from __future__ import annotations

PRESETS = {
    "tpu-v3-512": "16x32",
    "tpu-v3-1024": "32x32",
    "tpu-v3-multipod": "128x32 wrap=y",
}
