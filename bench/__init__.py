"""Benchmarks. Machines are noisy, so every figure is compared with a baseline from the same run."""
