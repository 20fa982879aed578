"""The decisions, as functions of their input: where each frontend of a Service must lead on this node, and why."""
