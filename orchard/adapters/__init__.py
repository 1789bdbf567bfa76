"""Adapters that give other agent frameworks Orchard's sandboxes: one module and one extra each."""
