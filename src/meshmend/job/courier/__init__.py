"""The MPI process beside each worker that carries its sums."""
