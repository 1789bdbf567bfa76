"""Processes of a running pipeline, each of which imports only what it needs."""
