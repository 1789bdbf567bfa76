"""Maintenance of a store: rebuild, compact, restore the stream."""
