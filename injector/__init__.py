"""The sandbox service: sandboxes on any image, with the agent added at start, behind one HTTP contract.

Client SDK, orchestrator (REST), in-sandbox agent, backends. It knows no harness, model or task.
"""
