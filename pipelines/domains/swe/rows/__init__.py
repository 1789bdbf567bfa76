"""Rows of datasets as tasks: a file for each family."""
