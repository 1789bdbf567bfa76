"""What happens within one attempt: sandbox, messages, prompts, budgets, records."""
