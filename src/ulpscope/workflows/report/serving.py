"""`ulpscope report RESULT --serve`: the page of a result on this machine alone, with the saved tensors behind it.

    http://127.0.0.1:8642/TOKEN/                             the page
    http://127.0.0.1:8642/TOKEN/pairs/0/37/41/overview       what it asks for: rank, and the ids of both values

Nothing is served by its path in the file system, and nothing is written. Every request must name this machine as its
host (a page elsewhere may have its name point here) and carry the token, which no other page and no other user knows.
"""

import errno
import hmac
import json
import secrets
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Any

from ulpscope.records.errors import UlpscopeError
from ulpscope.report.files.tensor_pair_json import error_json
from ulpscope.workflows.report.command import PAIRS, page_text
from ulpscope.workflows.report.tensor_answers import Done, TensorAnswers
from ulpscope.workflows.report.tensor_pairs import TensorPairs

HOST = "127.0.0.1"
LONGEST_WAIT = 30.0
"""Seconds without a byte from a client, or in which it does not take a piece of the answer."""
PIECE = 1 << 18
"""Bytes that are sent at once: a page of many megabytes may take minutes through a tunnel."""

_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_DATA_POLICY = "default-src 'none'; frame-ancestors 'none'"
# The page itself says which scripts and styles it may use; both policies hold.
_PAGE_POLICY = "connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def serve_report(result: Path, *, port: int, announce: Callable[[str], None]) -> None:
    """Serve a result until Ctrl-C, which is the usual end; `announce` is told the address. Port 0 takes a free one."""
    with open_server(result, port=port) as server:
        try:
            announce(server.address)
            server.serve_forever()
        except KeyboardInterrupt:
            return


def open_server(result: Path, *, port: int) -> "ReportServer":
    """A server that has its port and its page; serve_forever() starts it, closing gives the port back."""
    page = LivePage(result)
    page.read()  # before the port is taken: what cannot be read is told at once
    tensors = TensorAnswers(TensorPairs(result)) if (result / PAIRS).is_file() else None
    try:
        return ReportServer(port, page=page, tensors=tensors)
    except (OSError, OverflowError) as error:
        raise _no_port(port, error) from error


class LivePage:
    """The page of a result; of a trace that is being written, with all that is there when it is asked for."""

    def __init__(self, result: Path) -> None:
        self._result = result
        self._ranks: Sequence[int] | None = None
        self._page = b""
        self._lock = threading.Lock()

    def read(self) -> bytes:
        with self._lock:
            ranks = [rank.stat().st_mtime_ns for rank in sorted(self._result.glob("rank*"))]
            if ranks != self._ranks:
                self._page, self._ranks = page_text(self._result, served=True).encode("utf-8"), ranks
            return self._page


class ReportServer(ThreadingHTTPServer):
    """Answers many requests at once, from this machine only."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int, *, page: LivePage, tensors: TensorAnswers | None) -> None:
        self.page = page
        self.tensors = tensors
        self.token = secrets.token_urlsafe(24)
        super().__init__((HOST, port), _Handler)

    @property
    def address(self) -> str:
        """What the user opens."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    @property
    def hosts(self) -> tuple[str, ...]:
        """What a request may call this machine."""
        return f"{HOST}:{self.server_port}", f"localhost:{self.server_port}"

    def server_bind(self) -> None:
        """Take the port; http.server would ask for this machine's name, which can take seconds without a network."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, int(self.server_address[1])

    def server_close(self) -> None:
        super().server_close()
        if self.tensors is not None:
            self.tensors.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away, or never finished, is none of our errors."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError | TimeoutError):
            print(f"ulpscope: a request failed: {type(error).__name__}: {error}", file=sys.stderr)


@dataclass(frozen=True, slots=True)
class _Reply:
    status: HTTPStatus
    kind: str
    body: bytes
    policy: str


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: ReportServer
    protocol_version = "HTTP/1.1"
    server_version = "ulpscope"
    sys_version = ""
    timeout = LONGEST_WAIT

    def do_GET(self) -> None:
        self._send(self._reply())

    def do_HEAD(self) -> None:
        self._send(self._reply())

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What http.server itself refuses: a method it finds no function for, or something that is no request."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            status, seen = HTTPStatus.METHOD_NOT_ALLOWED, "this address is for reading only"
            self._send(_refused(status, seen, "GET or HEAD", "send no data"))
            return
        self._send(_refused(HTTPStatus(code), message or "a bad request", "a request of HTTP/1.1", "use a web browser"))

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the token would stand in the log."""

    def _reply(self) -> _Reply:
        try:
            return self._checked()
        except UlpscopeError as error:
            return _json(HTTPStatus.BAD_REQUEST, {"error": error_json(error)})
        except Exception as error:  # whatever goes wrong in one request, the others go on
            return _refused(
                HTTPStatus.INTERNAL_SERVER_ERROR,
                f"internal error: {type(error).__name__}: {error}",
                "no such error; this is a fault of ulpscope, not of your run",
                "report it, with the row that was looked at",
            )

    def _checked(self) -> _Reply:
        if self.headers.get_all("Host", []) not in [[host] for host in self.server.hosts]:
            hosts = " or ".join(self.server.hosts)
            return _refused(HTTPStatus.FORBIDDEN, "the request names another host", hosts, "open the address")
        path, _, query = self.path.partition("?")
        before, _, rest = path.removeprefix("/").partition("/")
        if not hmac.compare_digest(before.encode("utf-8", "replace"), self.server.token.encode()):
            return _refused(
                HTTPStatus.FORBIDDEN,
                "the address has no valid token",
                "the address that ulpscope report --serve printed, to its end",
                "copy it again; each start has a new one",
            )
        return self._found(rest, query)

    def _found(self, path: str, query: str) -> _Reply:
        if not path:
            return _Reply(HTTPStatus.OK, "text/html; charset=utf-8", self.server.page.read(), _PAGE_POLICY)
        answer = self.server.tensors.answer(path, query) if self.server.tensors is not None else None
        if answer is None:
            seen = "there is nothing at this address"
            return _refused(HTTPStatus.NOT_FOUND, seen, "what the page asks for", "open the page again")
        if isinstance(answer, Done):
            return _json(HTTPStatus.OK, {"done": True, "answer": answer.answer})
        return _json(HTTPStatus.ACCEPTED, {"done": False, "share": answer.share})

    def _send(self, reply: _Reply) -> None:
        self.send_response(reply.status)
        headers = _HEADERS | {
            "Content-Security-Policy": reply.policy,
            "Content-Type": reply.kind,
            "Content-Length": str(len(reply.body)),
            # A body that came with a refused request would else be taken for the next one.
            "Connection": "close",
        }
        if reply.status is HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = "GET, HEAD"
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            for start in range(0, len(reply.body), PIECE):
                self.wfile.write(reply.body[start : start + PIECE])


def _refused(status: HTTPStatus, seen: str, expected: str, next_step: str) -> _Reply:
    return _json(status, {"error": error_json(UlpscopeError(seen, expected=expected, next_step=next_step))})


def _json(status: HTTPStatus, content: dict[str, Any]) -> _Reply:
    body = json.dumps(content, allow_nan=False).encode("utf-8")
    return _Reply(status, "application/json; charset=utf-8", body, _DATA_POLICY)


def _no_port(port: int, error: OSError | OverflowError) -> UlpscopeError:
    why = {errno.EADDRINUSE: "is in use", errno.EACCES: "may not be taken by this user"}
    number = getattr(error, "errno", None)
    return UlpscopeError(
        f"port {port} {why.get(number or 0, f'cannot be taken: {error}')}",
        expected="a free port from 1024 to 65535",
        next_step="--port 0 takes a free one",
    )
