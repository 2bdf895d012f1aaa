"""A stampede: thousands of simulated buyers rush an event over HTTP, and then everything is recounted."""
