"""Measurements, as ratios in one run. Machines are noisy: a figure alone says little."""
