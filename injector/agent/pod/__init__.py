"""The agent inside the container of one sandbox: its commands run beside it, as the container is."""
