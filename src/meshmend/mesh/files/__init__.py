"""Plans, schedules and meshes as files: JSON for people and other programs, a compact binary form for large ones."""

from meshmend.mesh.files.files import load as load
from meshmend.mesh.files.files import save as save
