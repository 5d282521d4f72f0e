"""Mask calibration: measurement, quality checks and monitoring while a rig runs."""
