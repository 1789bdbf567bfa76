"""Browser agents: Chromium in a sandbox, generated sites, graders and judges."""
