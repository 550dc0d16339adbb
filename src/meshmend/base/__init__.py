"""What knows no domain: units, clocks, processes, tables, progress, environment variables."""
