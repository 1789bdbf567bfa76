"""Reads and writes trajectories in the file formats of other systems."""
