"""Judging finished campaigns again, and how far judges agree with graders that know the truth."""
