"""The parts of one attempt: sandboxes, messages, prompts, budgets, replay records."""
