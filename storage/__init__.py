"""The store: the event log as Delta tables, blobs by SHA-256, and the DuckDB read side.

One writer commits rows and stream position together; any number of readers query while it runs. Every table
but `events` is derived and can be rebuilt from it, and `events` from the stream.
"""
