"""What runs in the background. Nothing here is needed for correctness: an expired hold is free without it."""
