"""The processes of a running pipeline, each with no more imports than it needs."""
