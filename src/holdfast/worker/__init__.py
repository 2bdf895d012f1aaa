"""What runs in the background. An expired hold is free without it; very large events that were
cancelled need it to be wound up."""
