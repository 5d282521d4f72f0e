"""Keys, and connections encrypted by CURVE."""
