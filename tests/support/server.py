"""A file server on 127.0.0.1 with ranges, and the faults that real ones have."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class Faults:
    """What goes wrong, by file name; each list of statuses is used up one request at a time."""

    statuses: dict[str, list[int]] = field(default_factory=dict)
    cut_after: dict[str, list[int]] = field(default_factory=dict)
    corrupt: set[str] = field(default_factory=set)
    no_ranges: bool = False
    bytes_per_second: int = 0
    retry_after: str = "0"


@dataclass
class Served:
    """A running server: its URL, what went wrong on purpose, what was asked for."""

    url: str
    faults: Faults
    requests: list[tuple[str, str]] = field(default_factory=list)

    def ranges(self, name: str) -> list[str]:
        """The Range headers of the requests for a file, in order ("" for none)."""
        return [r for path, r in self.requests if path == name]


def _part(wanted: str, size: int) -> range | None:
    """Read a Range header: "bytes=a-b", "bytes=a-" or "bytes=-n"."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", wanted)
    if not match or not (match[1] or match[2]):
        return None
    if not match[1]:
        return range(max(0, size - int(match[2])), size)
    return range(int(match[1]), min(size, int(match[2]) + 1) if match[2] else size)


@contextmanager
def serve(directory: Path) -> Iterator[Served]:
    """Serve the files of a directory until the block ends."""
    served = Served("", Faults())

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            name = self.path.lstrip("/").split("?")[0]
            wanted = self.headers.get("Range", "")
            served.requests.append((name, wanted))
            path = directory / name
            statuses = served.faults.statuses.get(name)
            if statuses:
                self._answer(statuses.pop(0), b"")
            elif path.is_dir() and (path / "index.html").is_file():
                self._answer(200, (path / "index.html").read_bytes(), content_type="text/html")
            elif not path.is_file():
                self._answer(404, b"")
            else:
                self._file(name, path.read_bytes(), wanted)

        do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

        def _file(self, name: str, data: bytes, wanted: str) -> None:
            if name in served.faults.corrupt:
                data = bytes([data[0] ^ 1]) + data[1:]
            part = None if served.faults.no_ranges else _part(wanted, len(data))
            if part is None:
                self._answer(200, data, self._cut(name))
            elif part.start >= len(data):
                self._answer(416, b"")
            else:
                body = data[part.start : part.stop]
                content_range = f"bytes {part.start}-{part.stop - 1}/{len(data)}"
                self._answer(206, body, self._cut(name), content_range=content_range)

        def _cut(self, name: str) -> int | None:
            cuts = served.faults.cut_after.get(name)
            return cuts.pop(0) if cuts else None

        def _answer(
            self,
            status: int,
            body: bytes,
            cut: int | None = None,
            *,
            content_type: str = "application/octet-stream",
            content_range: str = "",
        ) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Type", content_type)
            if content_range:
                self.send_header("Content-Range", content_range)
            if status == 429:
                self.send_header("Retry-After", served.faults.retry_after)
            self.end_headers()
            if self.command == "HEAD":
                return
            speed = served.faults.bytes_per_second
            step = max(1, speed // 20) if speed else len(body) or 1
            sent = body if cut is None else body[:cut]
            for offset in range(0, len(sent), step):
                self.wfile.write(sent[offset : offset + step])
                if speed:
                    time.sleep(step / speed)
            if cut is not None:
                self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 128
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            pass  # clients that go away are part of the tests

    with Server(("127.0.0.1", 0), Handler) as server:
        served.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()
