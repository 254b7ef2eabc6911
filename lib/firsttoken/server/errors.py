"""What a client is told when a request fails: OpenAI's error format."""

from collections.abc import Mapping
from typing import Any

_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}


class ApiError(Exception):
    """A failure with its HTTP status; `param` names the field of the request that is at fault.

    Source: OpenAI, API reference, "Error codes"

    >>> ApiError(404, "no model 'x'", param="model", code="model_not_found").body["error"]["type"]
    'not_found_error'
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ):
        super().__init__(message)
        self.status, self.headers = status, headers
        kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
        self.body: dict[str, Any] = {
            "error": {"message": message, "type": kind, "param": param, "code": code}
        }
