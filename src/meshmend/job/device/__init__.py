"""Device memory that the workers of a host share: parts and totals stay where the gradients were computed."""
