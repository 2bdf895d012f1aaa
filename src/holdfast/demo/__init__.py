"""Demo data and the stampede, a rush of simulated buyers."""
