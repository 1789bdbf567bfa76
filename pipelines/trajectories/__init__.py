"""Trajectories out of the tables: the accepted paths of messages."""
