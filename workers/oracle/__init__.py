"""The oracle teacher: an OpenAI-compatible server that plays a task's gold patch through the tools.

With it the pipeline runs without a model, deterministically, with all endings that a rollout can have. It is
no model: every answer's `system_fingerprint` begins with `orchard-oracle`, and everything downstream says so.
"""
