"""Steps of examples for single domains."""
