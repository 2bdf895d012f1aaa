"""A stampede: load generators send thousands of simulated buyers to an event over HTTP, then Holdfast recounts it."""
