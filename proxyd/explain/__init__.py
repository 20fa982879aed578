"""Why packets go where they go: the decisions of ``desired``, and what a mode makes of them, told for one question."""
