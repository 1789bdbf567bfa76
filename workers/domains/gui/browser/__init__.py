"""The world `browser`: Chromium in the agent's sandbox, driven by Playwright over a tunnel."""
