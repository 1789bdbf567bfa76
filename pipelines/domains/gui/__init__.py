"""Before and after browser agents: tasks on sites and the web, their proof, rows with pictures."""
