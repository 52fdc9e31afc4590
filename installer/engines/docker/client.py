"""The docker SDK on a socket: a deadline for all questions, bounded answers, no settings of a user."""

import io
import time
from pathlib import Path
from typing import Any, Final

import docker  # noqa: TID253 - this module is imported where it is used
from docker.utils.proxy import ProxyConfig  # noqa: TID253
from requests import PreparedRequest, Response, Session
from urllib3 import HTTPResponse

from installer.host.sockets import ask_http

OLDEST: Final = "1.41"  # the API of 20.10, which limits the SDK; dockerd is asked without a version


class Client(docker.APIClient):
    """A client with a single deadline for all requests; raises OSError, also as APIError, or AnswerError."""

    def __init__(self, address: Path, timeout_s: float) -> None:
        Session.__init__(self)  # APIClient's own reads ~/.docker/config.json
        self.trust_env = False
        self.headers["Connection"] = "close"
        self.base_url = "http+docker://dockerd"
        self.timeout = int(timeout_s)
        self._version = OLDEST
        self._general_configs: dict[str, Any] = {}
        self._proxy_configs = ProxyConfig()
        self._address = address
        self._deadline = time.monotonic() + timeout_s
        self.answer = Response()  # the latest answer

    def send(self, request: PreparedRequest, *, stream: bool | None = False, **_: Any) -> Response:
        """Send a request of the SDK over a new connection."""
        path = request.path_url.removeprefix(f"/v{OLDEST}")
        words = (str(request.method), path, request.body, request.headers)
        head, body = ask_http(self._address, words, deadline=self._deadline, stream=bool(stream))
        answer = Response()
        self.answer = answer
        answer.status_code = head.status
        answer.reason = head.reason
        answer.url = path
        answer.encoding = "utf-8"  # never guessed, and nothing is unpacked
        answer.headers.update(head.getheaders())
        answer.raw = HTTPResponse(head if stream else io.BytesIO(body), preload_content=False)
        return answer
