"""Reinforcement learning on the log: balanced groups, what-if replays, losses and the trainer."""
