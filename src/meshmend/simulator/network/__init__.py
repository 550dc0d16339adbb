"""One all-reduce, chunk by chunk over every link."""
