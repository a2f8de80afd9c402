"""Library loggers: structlog's processors bound to standard `logging`, silent unless the host configures logging."""

import logging

import structlog
from structlog.typing import FilteringBoundLogger

_ROOT = "tokloom"
logging.getLogger(_ROOT).addHandler(logging.NullHandler())

_PROCESSORS: list[structlog.typing.Processor] = [
    structlog.stdlib.filter_by_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.format_exc_info,
    structlog.stdlib.render_to_log_kwargs,
]


def get_logger(name: str) -> FilteringBoundLogger:
    """The logger `tokloom.NAME`. Independent of the host's own structlog configuration."""
    logger: FilteringBoundLogger = structlog.wrap_logger(
        logging.getLogger(f"{_ROOT}.{name}"),
        processors=_PROCESSORS,
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    return logger
