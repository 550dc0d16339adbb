"""What people type, before the command line is parsed: a script with its own options, a mesh in several words."""

from __future__ import annotations

import re

from meshmend.errors import JobError
from meshmend.mesh import PRESETS

FLAGS = ("-q", "--quiet", "-v", "--verbose")
"""Options of `meshmend run` without a value."""
_ROW = re.compile(r"\d+(?:-\d+)+")
"""Chips in a row, of which a graph may have several."""
_MESH = re.compile(rf"(\d+(?:x\d+){{1,2}}|{_ROW.pattern}|{'|'.join(PRESETS)})(\s.*)?")
_MESH_WORD = re.compile(r"-(\d+x|[a-z]+@).*|wrap=.*|~.*@.*")


def leave_script(words: list[str]) -> list[str]:
    """A script's own options are not ours: everything from the script, or from -m, onwards is left alone."""
    place = 1
    while place < len(words) and words[place].startswith("-") and words[place] not in ("--help", "-h", "--", "-m"):
        if words[place].partition("=")[0].replace("_", "-") == "--nproc-per-node":
            raise JobError(f"{words[place]} is torchrun's: give the number of workers with -n, such as -n 4")
        word = words[place]
        alone = word in FLAGS or "=" in word or (word[1:2] != "-" and len(word) > 2)  # -q, --name=x, -n4
        place += 1 if alone else 2
    script = words[place:]
    return [*words[:place], *(["--"] if script and script[0] not in ("--help", "-h", "--") else []), *script]


def join_mesh(words: list[str]) -> list[str]:
    """A mesh is one argument, though people type it as several words, some of which look like options.

    What follows a -- belongs to another command.
    """
    if "--" in words:
        end = words.index("--")
        return [*join_mesh(words[:end]), *words[end:]]
    holes = [word for word in words if _MESH_WORD.fullmatch(word)]
    rest = [word for word in words if not _MESH_WORD.fullmatch(word)]
    before = words.index(holes[0]) - 1 if holes else 0
    at = next((i for i, word in enumerate(rest) if _MESH.fullmatch(word)), before)
    if at < 1:
        return words
    end = at + 1
    while _ROW.match(rest[at]) and end < len(rest) and _ROW.fullmatch(rest[end]):
        end += 1
    return [*rest[:at], " ".join([*rest[at:end], *holes]), *rest[end:]]
