"""The client for models at any OpenAI-compatible endpoint."""
