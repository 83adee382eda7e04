"""A loopback server for a channel and a wheel index, with faults on demand."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

TRUNCATED, HALFWAY, WRONG, GONE = "truncated", "halfway", "wrong", "gone"


class Loopback(ThreadingHTTPServer):
    """Serves a directory; `faults` maps ends of paths to what goes wrong with them."""

    request_queue_size = 128  # the default of 5 stalls clients that open many connections
    daemon_threads = True
    faults: ClassVar[dict[str, str]] = {}

    def __init__(self, directory: Path) -> None:
        handler = partial(_Handler, directory=str(directory))
        super().__init__(("127.0.0.1", 0), handler)
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address) -> None:
        pass  # a fault of ours, or a client that was told to stop


class _Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Loopback

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        fault = next((f for end, f in self.server.faults.items() if self.path.endswith(end)), "")
        path = Path(self.translate_path(self.path))
        if not fault or not path.is_file():
            super().do_GET()
            return
        data = path.read_bytes()
        if fault == GONE:
            self.send_error(404)
            return
        if fault == TRUNCATED:  # a complete answer with half a file
            data = data[: len(data) // 2]
        if fault == WRONG:
            data = data[:-1] + bytes([data[-1] ^ 1])
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if fault == HALFWAY:
            self.wfile.write(data[: len(data) // 2])
            self.wfile.flush()
            self.close_connection = True
            return
        self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def serving(directory: Path) -> Iterator[Loopback]:
    """Serve a directory while the context lasts."""
    server = Loopback(directory)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
