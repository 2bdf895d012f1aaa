"""The gate: the optional Redis in front of the engine. It may refuse a hold early; it never grants one."""
