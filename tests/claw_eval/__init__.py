"""Claw-Eval's tasks here and under its own runner: `python -m tests.claw_eval.compare`, with a checkout."""
