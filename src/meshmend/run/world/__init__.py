"""One mpirun and its couriers."""
