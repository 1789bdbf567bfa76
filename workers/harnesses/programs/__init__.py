"""Harnesses that are programs: they run unmodified inside the sandbox, and reach their model by the gateway.

A program is a record (`record`), executed by one runner (`runner`). Its files are a layer: an image of the
sandbox service that is laid over the task's (`layers`), built from packages by `orchard harness install`
(`building`). `catalog` has the programs that Orchard knows. docs/harness-programs.md explains more.
"""
