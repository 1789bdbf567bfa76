"""The part of the oracle that repairs."""
