"""Orchard-Claw in the worker: services of a task's world, their faces, and the ReAct harness over them."""
