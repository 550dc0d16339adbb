"""A plan cut in chunks and put on the clock."""

from meshmend.mesh.schedule.schedule import Schedule as Schedule
from meshmend.mesh.schedule.schedule import schedule as schedule
