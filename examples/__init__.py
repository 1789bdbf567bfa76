"""Demonstrations: each a TOML file of settings and steps, all run by `python -m examples.run FILE`."""
