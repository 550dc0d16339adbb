"""When a job saves its state, where, and which worker does it."""
