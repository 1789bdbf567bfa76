"""Logs as JSON, one object a line, with the id of the request being handled."""

import json
import logging
from contextvars import ContextVar
from datetime import UTC, datetime

REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
"""Inherited by tasks, so that what a request starts is logged with it too."""


_encode = json.JSONEncoder(ensure_ascii=False, default=str).encode


class JsonLogFormatter(logging.Formatter):
    """Formats `time` (RFC 3339, UTC), `level`, `logger`, `message`, `request_id`, `error`, and a record's
    `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        request_id = REQUEST_ID.get()
        if request_id is not None:
            line["request_id"] = request_id
        line |= getattr(record, "fields", {})
        if record.exc_info is not None:
            line["error"] = self.formatException(record.exc_info)
        return _encode(line)


def configure() -> None:
    """Write all logs of the process from INFO on to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLogFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
