"""A real S3 server in a process of its own, and a proxy in front of it that makes trouble."""

from __future__ import annotations

import http.client
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

BUCKET = "data"
READ_TIMEOUT_S = 1


@dataclass
class Fault:
    """What happens to the next `times` requests of this method whose path matches."""

    kind: str  # "500", "slow", "cut", "hold"
    method: str
    path: str
    times: int
    seconds: float = 2 * READ_TIMEOUT_S


@dataclass
class Store:
    """Where the server is, what it was asked, and what shall go wrong."""

    server_port: int
    server_pid: int = 0
    proxy_port: int = 0
    faults: list[Fault] = field(default_factory=list)
    log: list[tuple[str, str]] = field(default_factory=list)  # method and path of each request
    released: threading.Event = field(default_factory=threading.Event)  # what is held is dropped
    on_request: Callable[[str, str], None] = lambda method, path: None

    def client(self) -> Any:
        """A client of its own, past the proxy."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.server_port}",
            aws_access_key_id="key",
            aws_secret_access_key="secret",
            region_name="us-east-1",
        )

    def contents(self, prefix: str) -> dict[str, bytes]:
        client = self.client()
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{prefix}/")
        keys = [item["Key"] for page in pages for item in page.get("Contents", [])]
        return {k[len(prefix) + 1 :]: client.get_object(Bucket=BUCKET, Key=k)["Body"].read() for k in keys}

    def put_folder(self, folder: Path, prefix: str) -> None:
        client = self.client()
        for path in folder.rglob("*"):
            if path.is_file():
                client.put_object(
                    Bucket=BUCKET, Key=f"{prefix}/{path.relative_to(folder).as_posix()}", Body=path.read_bytes()
                )

    def asked(self, method: str, part: str) -> int:
        return sum(m == method and part in p for m, p in self.log)

    def take_fault(self, method: str, path: str) -> Fault | None:
        for fault in self.faults:
            if (
                fault.times > 0
                and fault.method == method
                and re.search(fault.path, path.removesuffix("?x-id=GetObject"))
            ):
                fault.times -= 1
                return fault
        return None

    def profile(self, file: Path, port: int | None = None) -> Path:
        """A configuration of the multi-storage client whose profile ``lab`` is the proxy."""
        credentials = {"access_key": "key", "secret_key": "secret"}
        options = {
            "base_path": "",
            "endpoint_url": f"http://127.0.0.1:{port or self.proxy_port}",
            "region_name": "us-east-1",
            "read_timeout": READ_TIMEOUT_S,
            "connect_timeout": READ_TIMEOUT_S,
        }
        lab = {
            "storage_provider": {"type": "s3", "options": options},
            "credentials_provider": {"type": "S3Credentials", "options": credentials},
        }
        file.write_text(json.dumps({"profiles": {"lab": lab}}))
        return file


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def running() -> Iterator[Store]:
    """The server with an empty bucket, and the proxy."""
    store = Store(server_port=free_port())
    run = f"from moto.server import main; main(['-H', '127.0.0.1', '-p', '{store.server_port}'])"
    server = subprocess.Popen([sys.executable, "-c", run], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    store.server_pid = server.pid
    proxy = None
    try:
        for _ in range(300):
            assert server.poll() is None, "the S3 server did not start"
            try:
                socket.create_connection(("127.0.0.1", store.server_port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.1)
        store.client().create_bucket(Bucket=BUCKET)
        proxy = _Proxy(store)
        store.proxy_port = proxy.server_address[1]
        threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield store
    finally:
        store.released.set()
        if proxy is not None:
            proxy.shutdown()
            proxy.server_close()
        server.kill()
        server.wait()


class _Proxy(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, store: Store) -> None:
        self.store = store
        super().__init__(("127.0.0.1", 0), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients that were killed, or lost patience


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Proxy

    def log_message(self, *args: Any) -> None:
        pass

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _forward(self) -> None:
        store, body = self.server.store, self._body()
        store.log.append((self.command, self.path))
        fault = store.take_fault(self.command, self.path)
        if fault is not None and fault.kind == "500":
            self.send_response(500)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if fault is not None and fault.kind == "slow":
            time.sleep(fault.seconds)
        if fault is not None and fault.kind == "hold":
            store.on_request(self.command, self.path)
            store.released.wait(60)
            self.close_connection = True
            return
        upstream = http.client.HTTPConnection("127.0.0.1", store.server_port, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "transfer-encoding"}
        upstream.request(self.command, self.path, body=body or None, headers=headers)
        answer = upstream.getresponse()
        content = answer.read()
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") or "0" if self.command == "HEAD" else str(len(content))
        self.send_header("Content-Length", length)
        self.end_headers()
        if fault is not None and fault.kind == "cut":
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self.wfile.write(content)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _forward  # noqa: N815
