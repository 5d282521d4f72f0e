"""Keys, CURVE encryption and access control for HTTP."""
