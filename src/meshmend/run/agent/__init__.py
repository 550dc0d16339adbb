"""One process per host that owns its workers and couriers."""
