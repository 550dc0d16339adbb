"""Embedding tables that no worker holds in full: slices of rows with copies, and gradients of the rows used."""
