"""The doers: claim a request, create an injected sandbox, run a harness loop, grade, publish, acknowledge.

What becomes of a request that nobody can finish is decided here too (`deadletters`, `openings`).
Harnesses decide what the model sees, graders what counts as solved, `llm/` speaks to models. One place,
`failures`, tells an infrastructure failure from the model's own; nothing downstream asks again.
"""
