"""The oracle for SWE tasks: it knows the gold patch and answers as a model would."""
