"""When to write and what a pass does: the one thread that owns all state."""
