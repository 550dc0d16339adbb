"""Devices, as `meshmend doctor` sees them: can workers sum in their memory, and does that survive a kill?"""

from __future__ import annotations

import sys
from pathlib import Path

from meshmend.run.doctor.programs import child, installed, last

CONTROL = Path("/dev/nvidiactl")
"""Exists if a process may use an NVIDIA driver."""
_COUNT = "from meshmend.base.cuda import count; print(count())"


def devices(deep: bool) -> tuple[bool | None, str, str]:
    """Return the finding: which devices there are, and where workers of this host would sum."""
    if not CONTROL.exists():
        return None, "no NVIDIA driver: workers of one host sum in shared memory", ""
    if not installed("cuda-bindings"):
        return None, "without cuda-bindings, workers sum in shared memory", "pip install 'meshmend[gpu]'"
    if not deep:
        return None, "skipped", ""
    status, said, wrong = child([sys.executable, "-P", "-c", _COUNT])
    if status or last(said) == "0":
        return False, f"the driver shows no device: {last(wrong or said)}", "try nvidia-smi"
    found = [tried(number) for number in range(int(last(said)))]
    good = all(one[0] for one in found)
    advice = "" if good else "workers sum in shared memory there; MIG and some virtual machines cannot do it"
    return (True if good else None), "; ".join(what for _, what in found), advice


def tried(number: int) -> tuple[bool, str]:
    """Whether the memory of one device can be shared, and a sentence about it."""
    status, said, wrong = child([sys.executable, "-P", "-m", "meshmend.job.device.trial", f"cuda:{number}"])
    if status:
        return False, f"cuda:{number}: {last(wrong)}"
    name, free, total, why = last(said).split("|", 3)
    room = f"cuda:{number} {name}, {int(free):,} of {int(total):,} MiB free"
    if why:
        return False, f"{room}: its memory cannot be shared ({why})"
    return True, f"{room}: workers sum in its memory, which outlived a killed owner"
