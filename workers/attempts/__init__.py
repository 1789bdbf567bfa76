"""Attempts at rollouts: claimed, run, replayed, retried, ended."""
