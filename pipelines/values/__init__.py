"""Values of unresolved trajectories: curves, credits, rise segments, and the annotators that give them."""
