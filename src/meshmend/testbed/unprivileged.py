"""Root without being root: in a user namespace of its own, a process may make networks that no other process sees."""

from __future__ import annotations

import os
import subprocess
import sys

from meshmend.errors import TestbedError

UNSHARE = ["unshare", "--user", "--map-root-user", "--net", "--mount", "sh", "-c"]
ENTER = 'mount -t tmpfs tmpfs /run && exec "$@"'
"""`ip netns` keeps namespaces under /run, where only root may write; no other process sees this /run."""


def become_root() -> None:
    """Run this command again in a user namespace, unless it is root already; an error where there are none."""
    if os.geteuid() == 0:
        return
    probe = [*UNSHARE, ENTER, "sh", "ip", "netns", "add", "probe"]
    try:
        said = subprocess.run(probe, capture_output=True, text=True)
    except FileNotFoundError:
        raise TestbedError("a testbed needs root, or unshare of util-linux to do without") from None
    if said.returncode:
        why = (said.stderr.strip().splitlines() or [f"status {said.returncode}"])[-1]
        raise TestbedError(f"a testbed needs root (sudo), as user namespaces are not to be had here: {why}")
    os.execvp(UNSHARE[0], [*UNSHARE, ENTER, "sh", sys.executable, "-m", "meshmend", *sys.argv[1:]])
