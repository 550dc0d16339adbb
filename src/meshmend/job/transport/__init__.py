"""The ways a sum takes between workers."""
