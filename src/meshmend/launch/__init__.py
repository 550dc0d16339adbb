"""`meshmend run`: starts workers and couriers, and keeps them going."""

from meshmend.launch.launcher import launch as launch
