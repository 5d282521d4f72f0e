"""Benchmarks, part of the product: figures that anyone can print on their own machine."""
