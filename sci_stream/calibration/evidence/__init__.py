"""What one snapshot says of its own data, and of its masks."""
