"""The whole pipeline in real processes: throughput, recording rate, scaling, long runs."""
