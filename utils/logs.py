"""How a daemon writes its log: lines for people, or one JSON object a line for machines.

Owns the root logger's handler, once a process. A record's extras
(`extra={"request_id": ...}`) become fields of the object, and stand behind the text.
"""

import json
import logging
import sys
from datetime import UTC, datetime

LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure_logging(shape: str, level: str) -> None:
    """shape, level: of LOG_FORMATS and LOG_LEVELS. Writes to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if shape == "json" else TextLines())
    handler.addFilter(is_no_hang_up)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def writes_json() -> bool:
    """Whether this process's log is for machines."""
    handlers = logging.getLogger().handlers
    return any(isinstance(handler.formatter, JsonLines) for handler in handlers)


def is_no_hang_up(record: logging.LogRecord) -> bool:
    """False for the traceback that gRPC logs where a caller hangs up while it is answered: no
    defect of the node, and whoever can connect could fill the log with it."""
    raised = record.exc_info[0] if record.exc_info else None
    return (
        raised is None or raised.__name__ != "ExecuteBatchError" or record.name.startswith("tasuki")
    )


class TextLines(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        extras = "".join(f" {name}={value}" for name, value in _extras(record).items())
        return super().formatMessage(record) + extras


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        written = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        line = {
            "time": written,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extras(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def _extras(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _OWN}
