"""Generated sites for browser agents: served in the worker's process, each from a seed, with what happened
as records."""
