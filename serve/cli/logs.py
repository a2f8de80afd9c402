"""How the command line shows the library's log: one line per event on standard error, for people or for machines."""

import json
import logging
import sys
import time
from typing import Final, Literal

Format = Literal["console", "json"]
LEVELS: Final = ("debug", "info", "warning", "error")
#: what every record has; the rest are an event's fields
_USUAL: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure(level: str, form: Format) -> None:
    """Set up the process's logging. Only the command line may."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Console())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _USUAL}


class _Console(logging.Formatter):
    """`12:30:01 INFO tokloom.engine finished request_id=r1 reason=stop`, and a traceback below."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%H:%M:%S", time.localtime(record.created))
        said = " ".join(f"{name}={_shown(value)}" for name, value in _fields(record).items())
        line = f"{at} {record.levelname} {record.name} {record.getMessage()}{' ' if said else ''}{said}"
        return line if record.exc_info is None else f"{line}\n{self.formatException(record.exc_info)}"


def _shown(value: object) -> str:
    """One line, whatever a client sent."""
    text = str(value)
    return text if text and text.isprintable() and " " not in text and "=" not in text else json.dumps(text)


class _Json(logging.Formatter):
    """One JSON object: time, level, logger, event, the event's fields."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        entry: dict[str, object] = {
            "time": at,
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        entry |= {name: value for name, value in _fields(record).items() if name not in entry}
        if record.exc_info is not None:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)
