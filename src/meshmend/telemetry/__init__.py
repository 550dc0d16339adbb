"""What happened in a run: typed events, their writer and their reader."""
