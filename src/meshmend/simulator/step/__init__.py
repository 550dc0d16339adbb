"""One training step: compute, sum, update, input."""
