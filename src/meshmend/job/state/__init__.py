"""A state as named leaves, as bytes, as a digest and as a file."""
