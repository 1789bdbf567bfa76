"""Parsers of test runners' output."""
