"""The forging suite on real tasks: of package releases and of the repair family, made by Orchard itself.

A forger (`forgers/`) is the text of one module that knows the scheme of grading and nothing of the
repository. Honest submissions are the known solution, rewritten (`variants.py`) and written by hand in
another way (`others.py`); its mutants say whether the grader is as strict as the tests themselves.
`make bench-forgery` runs all of it; `test_real.py` runs a small part.
"""
