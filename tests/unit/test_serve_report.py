"""A served report: on this machine only, with a token, for reading, and nothing but what the page asks for."""

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.request import urlopen

import numpy as np
import polars as pl
import pytest
from tests.unit.saved_runs import serving, write_result

from ulpscope.records.errors import UlpscopeError
from ulpscope.workflows.report import serving as serve_report
from ulpscope.workflows.report.serving import ReportServer, open_server
from ulpscope.workflows.report.tensor_answers import TensorAnswers

IMAGE = np.linspace(-1, 1, 48, dtype=np.float32).reshape(2, 4, 6)
SECRET = "a file that nobody asked for"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    (folder / "secret.txt").write_text(SECRET, encoding="utf-8")
    return write_result(folder, {"torch.relu": (IMAGE, IMAGE * 1.5)})


@pytest.fixture(scope="module")
def server(result: Path) -> Iterator[ReportServer]:
    with serving(result) as found:
        yield found


class Reply:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    def json(self) -> Any:
        assert self.headers["Content-Type"] == "application/json; charset=utf-8"
        return json.loads(self.body)


def ask(
    server: ReportServer, path: str, *, method: str = "GET", hosts: tuple[str, ...] | None = None, body: bytes = b""
) -> Reply:
    """One request; of a path below the token unless it begins with a slash."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.putrequest(
        method, path if path.startswith(("/", "http:")) else f"/{server.token}/{path}", skip_host=True
    )
    for host in hosts if hosts is not None else (f"127.0.0.1:{server.server_port}",):
        connection.putheader("Host", host)
    if body:
        connection.putheader("Content-Length", str(len(body)))
    connection.endheaders(body or None)
    try:
        return Reply(connection.getresponse())
    finally:
        connection.close()


def pair_path(result: Path) -> str:
    row = pl.read_parquet(result / "pairs.parquet").filter(pl.col("place") == "output.0").row(0, named=True)
    return f"pairs/{row['rank']}/{row['value_reference']}/{row['value_target']}"


def test_the_page_is_served_and_may_ask_only_its_own_server(server: ReportServer) -> None:
    with urlopen(server.address, timeout=60) as reply:
        text = reply.read().decode("utf-8")
    assert "connect-src 'self'" in text
    assert "connect-src 'none'" not in text
    assert server.token not in text


@pytest.mark.parametrize("path", ["", "no/such", "/"])
def test_every_answer_has_the_headers_that_keep_it_here(server: ReportServer, path: str) -> None:
    headers = ask(server, path).headers
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert "Access-Control-Allow-Origin" not in headers
    assert "Python" not in headers["Server"]


def test_a_head_request_has_no_body(server: ReportServer) -> None:
    whole, head = ask(server, ""), ask(server, "", method="HEAD")
    assert head.status == 200
    assert head.body == b""
    assert head.headers["Content-Length"] == str(len(whole.body))


def test_data_is_answered_below_the_token(server: ReportServer, result: Path) -> None:
    about = ask(server, pair_path(result)).json()["answer"]
    assert about["shape"] == [2, 4, 6]
    while not (overview := ask(server, f"{pair_path(result)}/overview").json())["done"]:
        assert 0.0 <= overview["share"] <= 1.0
    assert overview["answer"]["different"] == np.count_nonzero(IMAGE)


def without_token(server: ReportServer, result: Path) -> list[str]:
    wrong = "x" * len(server.token)
    paths = ["", pair_path(result)]
    tokens = [wrong, server.token[:-1], server.token + "x", server.token.swapcase(), "", "%00", "é"]
    return [f"/{token}/{path}" for token in tokens for path in paths] + ["/", "//", f"/{wrong}", "/favicon.ico"]


def test_without_the_token_there_is_nothing(server: ReportServer, result: Path) -> None:
    for path in without_token(server, result):
        reply = _raw(server, f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode())
        assert reply.startswith(b"HTTP/1.1 403 "), path
        assert b"<html" not in reply
        assert server.token.encode() not in reply


def test_each_start_has_a_token_of_its_own(result: Path, server: ReportServer) -> None:
    with open_server(result, port=0) as other:
        assert other.token != server.token
        assert len(other.token) >= 32


@pytest.mark.parametrize(
    "hosts",
    [
        ("evil.example",),
        ("evil.example:{port}",),
        ("127.0.0.1",),
        ("127.0.0.1:1",),
        ("127.0.0.1:{port}.evil.example",),
        ("localhost.evil.example:{port}",),
        ("0.0.0.0:{port}",),
        ("[::1]:{port}",),
        ("",),
        (),
        ("127.0.0.1:{port}", "evil.example"),
        ("127.0.0.1:{port}", "127.0.0.1:{port}"),
    ],
)
def test_a_request_for_another_host_is_refused(server: ReportServer, hosts: tuple[str, ...]) -> None:
    reply = ask(server, "", hosts=tuple(host.format(port=server.server_port) for host in hosts))
    assert reply.status == 403
    assert reply.json()["error"]["what"] == "the request names another host"


def test_this_machine_may_be_called_localhost(server: ReportServer) -> None:
    assert ask(server, "", hosts=(f"localhost:{server.server_port}",)).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "get"])
def test_reading_is_all_that_can_be_asked_for(server: ReportServer, method: str) -> None:
    reply = ask(server, "", method=method, body=b"x=1")
    assert reply.status == 405
    assert reply.headers["Allow"] == "GET, HEAD"
    assert set(reply.json()["error"]) == {"kind", "what", "expected", "next"}


def test_a_body_is_not_taken_for_the_next_request(server: ReportServer) -> None:
    hidden = f"GET /{server.token}/ HTTP/1.1\r\nHost: 127.0.0.1:{server.server_port}\r\n\r\n".encode()
    head = f"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(hidden)}\r\n\r\n".encode()
    reply = _raw(server, head + hidden)
    assert reply.count(b"HTTP/1.1 ") == 1
    assert reply.startswith(b"HTTP/1.1 405 ")


@pytest.mark.parametrize(
    "path",
    [
        "summary.json",
        "pairs.parquet",
        "../secret.txt",
        "../../secret.txt",
        "%2e%2e/secret.txt",
        "..%2fsecret.txt",
        "pairs/../../secret.txt",
        "pairs/0/1/2/../../../../secret.txt",
        "/{token}/../secret.txt",
        "/../secret.txt",
        "//127.0.0.1/secret.txt",
        "{folder}/secret.txt",
        "/{token}/{folder}/secret.txt",
        "file://{folder}/secret.txt",
        "http://127.0.0.1/{token}/",
        "..\\secret.txt",
        "pairs/0/1/2%00",
        "pairs/0/١/2",
        "pairs/0/" + "9" * 400 + "/2",
    ],
)
def test_no_file_is_served_by_its_path(server: ReportServer, result: Path, path: str) -> None:
    asked = path.format(token=server.token, folder=result.parent)
    line = asked if asked.startswith(("/", "http:", "file:")) else f"/{server.token}/{asked}"
    host = f"127.0.0.1:{server.server_port}"
    reply = _raw(server, f"GET {line} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert reply.split(b" ")[1] in (b"403", b"404")
    assert SECRET.encode() not in reply
    assert b'"schema"' not in reply


@pytest.mark.parametrize(
    "request_line", [b"\r\n\r\n\r\n", b"nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\xff\xfe\x00"]
)
def test_what_is_no_request_is_no_harm(server: ReportServer, request_line: bytes) -> None:
    reply = _raw(server, request_line)
    assert b"Traceback" not in reply
    assert not reply.startswith(b"HTTP/1.1 200")
    assert ask(server, "").status == 200


def test_an_address_that_is_too_long_is_refused(server: ReportServer) -> None:
    reply = _raw(server, b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n")
    assert b" 414 " in reply.splitlines()[0]


def _raw(server: ReportServer, request: bytes) -> bytes:
    """What comes back for these bytes until the connection is closed."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        try:
            while part := connection.recv(65536):
                received += part
        except ConnectionResetError:
            pass  # the server closed before it had read all that was sent
        return received


def test_nothing_of_the_result_changes(server: ReportServer, result: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in result.parent.rglob("*")}
    for question in ("", "/overview", "/histogram", "/heat?rows=0&columns=1", "/slice?rows=0&columns=1&at=0,0,0"):
        assert ask(server, pair_path(result) + question).status in (200, 202)
    assert {file: file.stat().st_mtime_ns for file in result.parent.rglob("*")} == before


def test_a_question_that_cannot_be_answered_says_why(server: ReportServer, result: Path) -> None:
    reply = ask(server, f"{pair_path(result)}/heat?rows=0&columns=0")
    assert reply.status == 400
    assert all(reply.json()["error"][part] for part in ("what", "expected", "next"))


def test_an_error_of_ours_is_told_without_a_traceback(
    server: ReportServer, result: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: TensorAnswers, path: str, query: str) -> None:
        raise RuntimeError("<b>planted</b>")

    monkeypatch.setattr(TensorAnswers, "answer", broken)
    reply = ask(server, pair_path(result))
    assert reply.status == 500
    assert reply.json()["error"]["what"] == "internal error: RuntimeError: <b>planted</b>"
    assert b"Traceback" not in reply.body


def test_a_client_that_goes_away_does_no_harm(server: ReportServer, capfd: pytest.CaptureFixture[str]) -> None:
    host = f"127.0.0.1:{server.server_port}"
    for request in (b"", b"GET /", f"GET /{server.token}/ HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()):
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as connection:
            connection.sendall(request)
            # Reset instead of an orderly end, so that the server meets it while it writes.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    assert ask(server, "").status == 200
    assert capfd.readouterr() == ("", "")


def test_many_requests_at_once_are_all_answered(server: ReportServer, result: Path) -> None:
    paths = ["", pair_path(result), f"{pair_path(result)}/overview", f"{pair_path(result)}/heat?rows=0&columns=2"] * 8
    with ThreadPoolExecutor(len(paths)) as pool:
        replies = list(pool.map(lambda path: ask(server, path), paths))
    assert {reply.status for reply in replies} <= {200, 202}
    assert len({reply.body for reply in replies[::4]}) == 1


def test_only_this_machine_is_listened_to(server: ReportServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", server.server_port), timeout=60)


def test_a_port_in_use_is_said_to_be(result: Path, server: ReportServer) -> None:
    with pytest.raises(UlpscopeError, match=f"port {server.server_port} is in use") as raised:
        open_server(result, port=server.server_port)
    assert raised.value.next_step == "--port 0 takes a free one"


@pytest.mark.parametrize("port", [-1, 70_000])
def test_a_port_that_there_is_not_is_refused(result: Path, port: int) -> None:
    with pytest.raises(UlpscopeError, match=f"port {port} cannot be taken"):
        open_server(result, port=port)


def test_a_directory_without_a_result_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UlpscopeError, match="holds no"):
        open_server(tmp_path, port=0)


def test_a_page_without_pairs_has_no_tensors(result: Path) -> None:
    with serving(result.parent / "ref") as server:
        assert ask(server, "").status == 200
        assert ask(server, pair_path(result)).status == 404


def test_a_result_that_names_no_traces_is_refused(result: Path, tmp_path: Path) -> None:
    for file in result.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    summary = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    (tmp_path / "summary.json").write_text(json.dumps(summary | {"target": None}), encoding="utf-8")
    with pytest.raises(UlpscopeError, match="does not name both traces"):
        open_server(tmp_path, port=0)


SCRIPT = """
import sys
from pathlib import Path
from ulpscope.workflows.report.serving import serve_report
serve_report(Path(sys.argv[1]), port=0, announce=lambda address: print(address, flush=True))
"""


def test_an_interrupt_is_the_usual_end(result: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(result)]
    # A shell's background jobs ignore the interrupt, and children inherit that.
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        with urlopen(address, timeout=60) as reply:
            assert reply.status == 200
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert process.returncode == 0
    assert told == ""


def test_the_waiting_of_a_silent_client_ends(result: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_report._Handler, "timeout", 0.1)
    with serving(result) as server, socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as silent:
        assert silent.recv(1) == b""


def test_a_slow_client_has_its_time_for_each_piece() -> None:
    handler, written = object.__new__(serve_report._Handler), Mock()
    handler.command, handler.request_version, handler.requestline = "GET", "HTTP/1.1", "GET / HTTP/1.1"
    handler.wfile = written
    page = os.urandom(3 * serve_report.PIECE + 1)
    handler._send(serve_report._Reply(HTTPStatus.OK, "text/html", page, ""))
    head, *body = (call.args[0] for call in written.write.call_args_list)
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"".join(body) == page
    assert [len(part) for part in body] == [serve_report.PIECE] * 3 + [1]


def test_the_page_outlives_its_result(result: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(result, copy)
    with serving(copy) as server:
        shutil.rmtree(copy)
        assert ask(server, "").status == 200
        assert ask(server, pair_path(result)).json()["answer"]["shape"] == [2, 4, 6]


def test_many_silent_clients_do_not_stop_the_others(server: ReportServer) -> None:
    with ExitStack() as silent:
        for _ in range(100):
            silent.enter_context(socket.create_connection(("127.0.0.1", server.server_port), timeout=60))
        assert ask(server, "").status == 200


def test_serving_needs_no_name_lookup(result: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lookup(*names: Any) -> str:
        raise AssertionError("asked for a name")

    monkeypatch.setattr(socket, "getfqdn", lookup)
    with open_server(result, port=0) as server:
        assert server.address.startswith(f"http://127.0.0.1:{server.server_port}/")
        assert os.path.basename(server.address.rstrip("/")) == server.token
