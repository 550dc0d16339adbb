"""A worker's side of a round: with a courier, or alone."""
