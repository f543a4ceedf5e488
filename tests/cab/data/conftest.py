"""A host on this machine that serves files as hosts do, and as they do on a bad day."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class Host:
    """A host with the content of its ``files`` by path, and the paths of requests."""

    def __init__(self) -> None:
        self.address = ""
        self.files: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.cuts: list[int] = []  # numbers of bytes after which the next answers end
        self.statuses: list[int] = []  # of the next answers
        self.pages: set[str] = set()  # paths that are answered with a web page

    def path(self, end: str) -> str:
        """Return the path of the file whose path ends so."""
        return next(path for path in self.files if path.endswith(end))


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A host; a failed download is retried at once."""
    monkeypatch.setattr("cab.data.download.RETRY_DELAYS", (0.0, 0.0))
    host = Host()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.lstrip("/")
            host.requests.append(path)
            if host.statuses or path not in host.files:
                self.send_error(host.statuses.pop(0) if host.statuses else 404)
                return
            is_page = path in host.pages
            body = b"<html>log in first</html>" if is_page else host.files[path]
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8" if is_page else "application/octet-stream")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: host.cuts.pop(0)] if host.cuts else body)

        def log_message(self, *_: object) -> None:
            """Do not log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    host.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield host
    server.shutdown()
    server.server_close()
    thread.join()
