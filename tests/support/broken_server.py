"""A server that speaks OpenAI's API wrongly, in the way that a test asks for."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODELS = {"object": "list", "data": [{"id": "broken", "object": "model"}]}


@contextlib.contextmanager
def broken_server(answer: bytes, *, status: int = 200, models: object = MODELS) -> Iterator[str]:
    """Answer every POST with the same status and bytes, and `/v1/models` with `models`; yields the address."""

    class Broken(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(200, json.dumps(models).encode())

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self._send(status, answer)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def _send(self, code: int, body: bytes) -> None:
            self.send_response(code)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Broken) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
