"""Reads trajectories from the tables: the accepted paths of messages."""
