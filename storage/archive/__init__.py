"""The archive: events that leave the stream for good, sealed into self-checking Parquet files.

A closed campaign's events become segments and a manifest (`seal`), are read back and compared (`verify`), and
only then leave the stream (`archiving`). Readers of the whole log read them from here (`history`).
"""
