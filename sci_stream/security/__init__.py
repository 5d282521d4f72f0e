"""Keys, CURVE encryption and HTTP access control."""
