"""Live video from snapshot compressive imaging cameras."""
