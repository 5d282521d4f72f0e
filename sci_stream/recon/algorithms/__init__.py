"""The paper's algorithm, GAP, and its schedule of noise levels."""
