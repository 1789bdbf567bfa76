"""The oracle teacher: an OpenAI-compatible server that plays a task's gold patch through the tools.

It makes the pipeline run with no model, deterministically, with all the ends that a rollout can have. It is
no model: every answer's `system_fingerprint` begins with `orchard-oracle`, and everything downstream says so.
"""
