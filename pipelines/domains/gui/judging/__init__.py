"""Judges finished campaigns again, and measures how far judges agree with graders that know the truth."""
