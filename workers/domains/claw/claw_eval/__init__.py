"""Claw-Eval in the worker: mock services of the user's checkout in a sandbox, its graders in another."""
