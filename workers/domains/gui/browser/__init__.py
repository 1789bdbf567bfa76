"""Browsers of GUI tasks: Chromium in the sandbox, driven by Playwright over a tunnel, as one kind of
world."""
