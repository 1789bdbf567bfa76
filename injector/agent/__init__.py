"""The agent: runs commands and moves files for sandboxes, and serves them over HTTP.

It imports the standard library and aiohttp only, because the same code runs inside other people's images. On
one machine it is a process outside all sandboxes that enters their namespaces (`local/`).
"""
