"""The reconstruct node: solves snapshots on its device and sends the video to the sink."""
