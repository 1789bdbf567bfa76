"""Workers: they claim requests, create sandboxes, run harnesses, grade, publish and acknowledge.

`attempts` also decides what becomes of a request that nobody can finish (`deadletters`, `reopen`). Harnesses
decide what the model sees, graders what counts as solved, `llm/` speaks to models. One module, `failures`,
tells an infrastructure failure from the model's own; nothing downstream asks again.
"""
