"""Steps of examples that are a domain's own."""
