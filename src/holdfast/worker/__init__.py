"""Background jobs. Expired holds are for sale without them, but only a worker finishes the cancellation of a very large
event."""
