"""What the server tells its log. Configuring logging is the command line's business."""

import logging
from typing import Final

from starlette.types import Scope

_LOGGER: Final = logging.getLogger("tokloom.serve.http")


def request_id_of(scope: Scope) -> str:
    """The id that the response carries."""
    return str(scope["state"]["request_id"])


def report_failure(scope: Scope, error: Exception) -> None:
    """A fault of the server, with its traceback."""
    _LOGGER.error("request %s failed: %s %s", request_id_of(scope), scope["method"], scope["path"], exc_info=error)


def report_request(scope: Scope, status: int, seconds: float) -> None:
    """A request is over; status 499 if its client went first."""
    if _LOGGER.isEnabledFor(logging.INFO):
        _LOGGER.info(
            "%s %s %d %.1f ms id=%s", scope["method"], scope["path"], status, seconds * 1000, request_id_of(scope)
        )
