"""The pages that buyers see. They are a client of the API, which they call in their own process."""
