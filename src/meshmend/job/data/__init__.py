"""Which samples a lane holds, and where they come from."""
