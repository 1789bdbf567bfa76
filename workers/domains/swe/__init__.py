"""Software agents: grading by a repository's own tests."""
