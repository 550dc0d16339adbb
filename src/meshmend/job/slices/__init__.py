"""A worker's side of sharded updates: its copies of slices, what updates them, and their files."""
