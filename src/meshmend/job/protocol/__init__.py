"""What couriers do in every round and after a failure: pure decisions, no input or output."""
