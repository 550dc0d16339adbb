"""The hosts of a run, and the agents on them."""
