"""Queries of requests, in which paths may have any bytes: `%FF` is the text that Python has for that byte."""

from collections.abc import Mapping
from urllib.parse import parse_qsl

from aiohttp import web


def query(request: web.Request) -> Mapping[str, str]:
    """The first value of each name."""
    pairs = parse_qsl(request.rel_url.raw_query_string, keep_blank_values=True, errors="surrogateescape")
    return dict(reversed(pairs))
