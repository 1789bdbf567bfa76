"""Generated sites for browser agents: made from a seed, served in the worker's process, graded by their
records."""
