"""Faults of the sensor, which several snapshots show."""
