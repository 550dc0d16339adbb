"""Failures on purpose, for tests and chaos."""
