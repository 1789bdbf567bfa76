"""Orchard's sandboxes for other agent frameworks: one small module each, an extra each."""
