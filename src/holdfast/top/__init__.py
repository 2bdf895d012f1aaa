"""Shows what is being sold right now, for `holdfast top`."""
