"""Can this machine run jobs? Kills a process to find out."""
