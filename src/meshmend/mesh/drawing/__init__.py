"""Plans as pictures and as text."""
