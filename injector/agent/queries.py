"""Parses queries of requests, in which paths may have any bytes: `%FF` becomes Python's surrogate escape."""

from collections.abc import Mapping
from urllib.parse import parse_qsl

from aiohttp import web


def query(request: web.Request) -> Mapping[str, str]:
    pairs = parse_qsl(request.rel_url.raw_query_string, keep_blank_values=True, errors="surrogateescape")
    return dict(reversed(pairs))
