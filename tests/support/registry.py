"""A registry for images on this machine: as much of the OCI distribution protocol as pulling takes.

It serves what it is given, demands a login where it is told to, and notes every request with the
login that came with it. It also serves plain files below `/files/`.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_SIF_LAYER = "application/vnd.sylabs.sif.layer.v1.sif"


@dataclass
class Registry:
    """Use as a context manager; `host` is its address then."""

    login: tuple[str, str] | None = None
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    """Path and `user:password` of each."""
    blobs: dict[str, Path | bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)

    def __enter__(self) -> Registry:
        handler = type("Handler", (_Handler,), {"registry": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    @property
    def host(self) -> str:
        """Address and port."""
        return f"127.0.0.1:{self.server.server_port}"

    def add_image(
        self, name: str, tag: str, tarball: Path, *, architecture: str = "amd64",
        environ: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        """A Docker image with one layer."""
        content = tarball.read_bytes()
        layer = gzip.compress(content, 1, mtime=0)
        config = {
            "architecture": architecture,
            "os": "linux",
            "config": {"Env": [f"{key}={value}" for key, value in (environ or {}).items()]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(content)]},
            "history": [{"created_by": "test"}],
        }
        self._add(
            name, tag, ("application/vnd.oci.image.config.v1+json", json.dumps(config).encode()),
            ("application/vnd.oci.image.layer.v1.tar+gzip", layer), {},
        )  # fmt: skip

    def add_sif(self, name: str, tag: str, image: Path) -> None:
        """An image as it is, for oras://."""
        title = {"org.opencontainers.image.title": image.name}
        config = ("application/vnd.sylabs.sif.config.v1+json", b"{}")
        self._add(name, tag, config, (_SIF_LAYER, image.read_bytes()), title)

    def _add(
        self, name: str, tag: str, config: tuple[str, bytes], layer: tuple[str, bytes],
        annotations: dict[str, str],
    ) -> None:  # fmt: skip
        for _, content in (config, layer):
            self.blobs[_digest(content)] = content
        manifest: dict[str, Any] = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _descriptor(*config),
            "layers": [{**_descriptor(*layer), "annotations": annotations}],
        }
        raw = json.dumps(manifest).encode()
        for reference in (tag, _digest(raw)):
            self.manifests[f"{name}:{reference}"] = raw


class _Handler(BaseHTTPRequestHandler):
    registry: Registry
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        registry = self.registry
        header = self.headers.get("Authorization", "")
        login = base64.b64decode(header[6:]).decode() if header.startswith("Basic ") else None
        registry.requests.append((self.path, login))
        parts = self.path.split("/")
        if registry.login is not None and login != ":".join(registry.login):
            text = b'{"errors": [{"code": "UNAUTHORIZED", "message": "authentication required"}]}'
            self._send(401, text, {"WWW-Authenticate": 'Basic realm="test"'}, body=body)
        elif self.path in ("/v2", "/v2/"):
            self._send(200, b"{}", {}, body=body)
        elif parts[1] == "files" and "/".join(parts[2:]) in registry.files:
            self._send(200, registry.files["/".join(parts[2:])].read_bytes(), {}, body=body)
        elif "manifests" in parts and self._key("manifests") in registry.manifests:
            raw = registry.manifests[self._key("manifests")]
            kind = {"Content-Type": _MANIFEST, "Docker-Content-Digest": _digest(raw)}
            self._send(200, raw, kind, body=body)
        elif "blobs" in parts and parts[-1] in registry.blobs:
            blob = registry.blobs[parts[-1]]
            content = blob if isinstance(blob, bytes) else blob.read_bytes()
            self._send(200, content, {"Docker-Content-Digest": parts[-1]}, body=body)
        else:
            text = b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}'
            self._send(404, text, {}, body=body)

    def _key(self, word: str) -> str:
        name, _, reference = self.path.removeprefix("/v2/").partition(f"/{word}/")
        return f"{name}:{reference}"

    def _send(self, status: int, content: bytes, headers: dict[str, str], *, body: bool) -> None:
        first, last = 0, len(content) - 1
        wanted = self.headers.get("Range", "")
        if status == 200 and wanted.startswith("bytes="):
            begin, _, end = wanted[6:].partition("-")
            first, last = int(begin), min(int(end) if end else last, last)
            status = 206
            headers = {**headers, "Content-Range": f"bytes {first}-{last}/{len(content)}"}
        part = content[first : last + 1]
        self.send_response(status)
        for name, value in {"Content-Type": "application/octet-stream", **headers}.items():
            self.send_header(name, value)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if body:
            self.wfile.write(part)


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _descriptor(kind: str, content: bytes) -> dict[str, Any]:
    return {"mediaType": kind, "digest": _digest(content), "size": len(content)}
