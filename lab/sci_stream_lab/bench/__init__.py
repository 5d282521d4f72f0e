"""Benchmarks, part of the product: anyone can print the documented figures on their own machine."""
