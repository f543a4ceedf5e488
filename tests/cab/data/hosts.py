"""A host on this machine: files that are served as hosts do, and as they do on a bad day."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Host:
    """``files`` by path; ``asked`` is what was asked for, with the range.

    Attributes:
        cuts: how many bytes of the body the next answers send before the connection ends.
        statuses: what the next answers are, in place of the file.
        takes_ranges: whether a part of a file can be had.
        pages: paths that are answered with a web page.
        versions: the ETag of a path; without one a file has none.
        raw: what is sent for a path byte by byte, with the status line and the headers; ``HOST`` in it is the address.
    """

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    takes_ranges: bool = True
    pages: set[str] = field(default_factory=set)
    versions: dict[str, str] = field(default_factory=dict)
    raw: dict[str, bytes] = field(default_factory=dict)


@contextmanager
def serve() -> Iterator[Host]:
    host = Host()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, wanted = self.path.lstrip("/"), self.headers.get("Range", "")
            host.asked.append((path, wanted))
            if path in host.raw:
                with contextlib.suppress(ConnectionError):  # of a client that has read enough
                    self.wfile.write(host.raw[path].replace(b"HOST", host.address.encode()))
                self.close_connection = True
                return
            if host.statuses:
                self.send_error(host.statuses.pop(0))
                return
            if path in host.pages:
                self.answer(b"<html>log in first</html>", "text/html; charset=utf-8")
                return
            if path not in host.files:
                self.send_error(404)
                return
            content, version = host.files[path], host.versions.get(path, "")
            start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and host.takes_ranges else 0
            if self.headers.get("If-Range", version) != version:
                start = 0
            if start and start >= len(content):
                self.send_error(416)
                return
            self.answer(content, "application/octet-stream", start=start, version=version)

        def answer(self, content: bytes, kind: str, *, start: int = 0, version: str = "") -> None:
            body = content[start:]
            self.send_response(206 if start else 200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            if version:
                self.send_header("ETag", version)
            self.end_headers()
            self.wfile.write(body[: host.cuts.pop(0)] if host.cuts else body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    host.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield host
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
