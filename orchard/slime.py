"""`orchard.slime.generate_rollout`, the path that slime is given (docs/training.md)."""

from orchard.adapters.slime import generate_rollout

__all__ = ["generate_rollout"]
