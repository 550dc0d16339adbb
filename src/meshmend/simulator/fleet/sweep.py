"""The same fleet on meshes from 512 to 65,536 chips, and from which size on routing around the hole pays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from meshmend.base.terminal import SILENT, Tell
from meshmend.errors import SimulateError
from meshmend.mesh import Mesh
from meshmend.simulator.fleet.fleet import Fleet, Outcome, Study, study

MESHES = ("16x32", "32x32", "64x32", "128x32 wrap=y", "128x64", "128x128", "256x128", "256x256")
"""512 to 65,536 chips; 4096 is the machine of arXiv 2011.03641."""
SURE = 2.0
"""Standard errors by which a policy must be ahead."""


@dataclass(frozen=True)
class Sweep:
    """Studies by size, and the part of all chip time that must be gained for it to pay."""

    studies: tuple[Study, ...]
    worth: float
    policy: str = "route"

    def lead(self, at: Study) -> tuple[Outcome, float, float]:
        """The best other policy at a size, how far ahead of it `policy` is, and the standard error of that."""
        own = at.outcomes[self.policy]
        other = max((o for o in at.outcomes.values() if o is not own), key=lambda outcome: outcome.goodput)
        return other, *own.ahead_of(other)

    def pays_from(self, worth: float) -> Study | None:
        """The least size from which on, at all larger sizes too, `policy` gains more than this and not by chance."""
        found = None
        for at in reversed(self.studies):
            _, ahead, error = self.lead(at)
            if not (ahead > worth and ahead > SURE * error):
                break
            found = at
        return found

    @property
    def verdict(self) -> str:
        """From where on it pays, in words."""
        ahead, pays = self.pays_from(0.0), self.pays_from(self.worth)
        if not ahead:
            return f"{self.policy} is not ahead of the best other policy at the largest size"
        text = f"{self.policy} is ahead of the best other policy from {ahead.fleet.mesh.size:,} chips on"
        gain = f"{100 * self.worth:g} % of all chip time"
        if not pays:
            return f"{text}, but at no size by {gain}"
        return f"{text}, and by more than {gain} from {pays.fleet.mesh.size:,} chips on"


def sweep(
    fleet: Fleet,
    meshes: Sequence[str] = MESHES,
    *,
    worth: float = 0.01,
    tell: Tell = SILENT,
) -> Sweep:
    """Study the fleet on each of these meshes."""
    if "route" not in fleet.policies or len(fleet.policies) < 2:
        raise SimulateError("a sweep compares route with the others: choose the policy route and at least one more")
    if not 0 <= worth < 1 or math.isnan(worth):
        raise SimulateError(f"worth is {worth:g}: expected the fraction of chip time that must be gained, 0 to 1")
    studies = []
    for text in meshes:
        at = replace(fleet, mesh=Mesh.parse(text))
        studies.append(study(at, partial(_tell_at, tell, f"{at.mesh.size:,} chips")))
    return Sweep(tuple(sorted(studies, key=lambda one: one.fleet.mesh.size)), worth)


def _tell_at(tell: Tell, where: str, what: str, done: int, of: int) -> None:
    tell(f"{where}: {what}", done, of)
