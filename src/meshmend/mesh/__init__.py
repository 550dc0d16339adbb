"""What exists and what is dead."""

from meshmend.mesh.ascii import text_map as text_map
from meshmend.mesh.grid import WAYS as WAYS
from meshmend.mesh.grid import Chip as Chip
from meshmend.mesh.mesh import Mesh as Mesh
from meshmend.mesh.presets import PRESETS as PRESETS
