"""Copies of hidden tests with wrong expectations, which a right answer fails."""
