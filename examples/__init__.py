"""Demonstrations: each is a TOML file of settings and steps, run by `python -m examples.run FILE`."""
