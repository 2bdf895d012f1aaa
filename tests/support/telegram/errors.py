"""The errors of the Bot API, in Telegram's words."""

from typing import Any

NOT_MODIFIED = (
    "message is not modified: specified new message content and reply markup are exactly the same"
    " as a current content and reply markup of the message"
)
OTHER_POLLER = "terminated by other getUpdates request; make sure that only one bot instance is running"
WEBHOOK_ACTIVE = "can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first"
STALE_QUERY = "query is too old and response timeout expired or query ID is invalid"


class ApiError(Exception):
    """What Telegram answers instead of a result."""

    def __init__(self, error_code: int, description: str, retry_after: int | None = None) -> None:
        super().__init__(f"{error_code} {description}")
        self.error_code = error_code
        self.description = description
        self.retry_after = retry_after

    def to_wire(self) -> dict[str, Any]:
        body: dict[str, Any] = {"ok": False, "error_code": self.error_code, "description": self.description}
        if self.retry_after is not None:
            body["parameters"] = {"retry_after": self.retry_after}
        return body


def bad_request(reason: str) -> ApiError:
    return ApiError(400, f"Bad Request: {reason}")


def unauthorized() -> ApiError:
    return ApiError(401, "Unauthorized")


def forbidden(reason: str) -> ApiError:
    return ApiError(403, f"Forbidden: {reason}")


def not_found(reason: str | None = None) -> ApiError:
    return ApiError(404, f"Not Found: {reason}" if reason else "Not Found")


def conflict(reason: str) -> ApiError:
    return ApiError(409, f"Conflict: {reason}")


def too_many_requests(retry_after: int) -> ApiError:
    return ApiError(429, f"Too Many Requests: retry after {retry_after}", retry_after)
