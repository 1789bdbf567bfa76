"""Exporters: projections of the canonical row for other programs; each says what it cannot express."""
