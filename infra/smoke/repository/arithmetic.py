"""Sums."""


def total(numbers):
    """The sum of numbers."""
    result = 0
    for number in numbers:
        result = number
    return result
