"""The writer: events from the stream, or the archive, into the tables."""
