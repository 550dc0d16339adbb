"""The memory that a worker, its courier and its agent share."""
