"""The acquire node: reads the camera, numbers snapshots and dispatches them."""
