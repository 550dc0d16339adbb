"""What a state is in numpy, JAX and PyTorch."""
