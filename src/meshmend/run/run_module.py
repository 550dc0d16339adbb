"""A worker's script for `meshmend run -m MODULE`: runs the module as `python -m` would."""

from __future__ import annotations

import os
import runpy
import sys

if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    sys.path[0] = os.getcwd()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
