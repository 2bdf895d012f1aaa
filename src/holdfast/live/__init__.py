"""The read model of events: an in-memory copy that follows the journal, and the messages of the live feed."""
