"""One agent per host, which starts its workers and watches them and their couriers."""
