"""The agent inside the container of one sandbox; commands run beside it, in the same container."""
