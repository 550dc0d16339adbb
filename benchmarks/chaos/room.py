"""A room of its own for the torment: mounts and process numbers that nobody else on the machine has.

What fills /dev/shm or a disk here fills nobody else's. And nothing can be left behind outside: when the first process
of the room ends, even by SIGKILL, the kernel kills all others and takes back mounts, network namespaces and files.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from meshmend.base.processes import die_with_parent

HOME = "MESHMEND_CHAOS_HOME"
"""Set within the room: its folder, which is a file system of its own. Another one is the run's disk there."""
LEAST, EACH, DISK = 256, 16, 512
"""Megabytes of /dev/shm at least, of it for each worker, and of the disk."""
UNSHARE = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private"]
ENTER = f"""
set -e
mount -t tmpfs -o size="$MEGABYTES"m,mode=1777 tmpfs /dev/shm
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs "${HOME}"
mkdir "${HOME}/disk"
mount -t tmpfs -o size={DISK}m tmpfs "${HOME}/disk" # the run's alone: what keeps it alive must not wait for room
set +e
"$@" & # the shell stays, as the first process: it takes in what launchers leave when they are killed
wait $!
exit $?
"""


def inside() -> bool:
    """Whether this process is in such a room."""
    return HOME in os.environ


def enter(workers: int) -> int:
    """Run this command again in a room for so many workers; its status."""
    home = tempfile.mkdtemp(prefix="meshmend-chaos-")
    try:
        root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        words = [*UNSHARE, *root, "bash", "-c", ENTER, "bash", sys.executable, *sys.argv]
        found = {**os.environ, HOME: home, "MEGABYTES": str(max(LEAST, EACH * workers))}
        return subprocess.run(words, env=found, preexec_fn=die_with_parent).returncode
    finally:
        shutil.rmtree(home, ignore_errors=True)


def home() -> Path:
    """The folder of the room."""
    return Path(os.environ[HOME])
