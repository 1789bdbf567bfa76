"""The archive: what leaves the event stream for good, sealed into Parquet files that check themselves.

A closed campaign's events become segments and a manifest (`seal`), are read back and compared (`verify`), and
only then leave the stream (`archiving`). Readers of the whole log take them from here again (`history`).
"""
