"""Device-specific parts: device choice, transfers, CUDA graphs, memory planning, asynchronous
solves.
"""
