"""The forging suite: submissions that repair nothing and want a reward all the same, through the real grader.

A trick is a record (`trick.py`), independent of the layout of the task it is tried on (`layouts.py`). Honest
submissions (`honest.py`) go the same way and must all be rewarded. `make bench-forgery` runs all of them in
real sandboxes and writes docs/benchmarks/forgery.md; `test_forgery.py` runs a sample.
"""
