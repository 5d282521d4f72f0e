"""The position of the masks on the sensor, fitted to one snapshot in small blocks."""
