"""Synthesis of tasks for assistants, in four steps on a queue: propose, write, solve, refine."""
