"""What exists and what is dead."""

from meshmend.mesh.ascii import text_map as text_map
from meshmend.mesh.fabric import Fabric as Fabric
from meshmend.mesh.graph import Graph as Graph
from meshmend.mesh.grid import WAYS as WAYS
from meshmend.mesh.grid import Chip as Chip
from meshmend.mesh.mesh import Mesh as Mesh
from meshmend.mesh.mesh import on_grid as on_grid
from meshmend.mesh.presets import PRESETS as PRESETS
from meshmend.mesh.read import read_mesh as read_mesh
