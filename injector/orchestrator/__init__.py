"""The orchestrator: the HTTP contract of docs/schemas/openapi.json, stateless, in front of a Backend."""
