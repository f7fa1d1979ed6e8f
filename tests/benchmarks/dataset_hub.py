"""A hub with one dataset, served over HTTP to the real `datasets` client.

python tests/benchmarks/dataset_hub.py OWNER/NAME test=rows.jsonl      # prints its address, serves until killed
"""

from __future__ import annotations

import hashlib
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def handler(repo: str, files: dict[str, bytes]) -> type[BaseHTTPRequestHandler]:
    """A request handler for one dataset repo with these files."""
    oids = {name: hashlib.sha1(data).hexdigest() for name, data in files.items()}
    entries = [{"type": "file", "path": name, "size": len(data), "oid": oids[name]} for name, data in files.items()]
    info = {
        "_id": "1", "id": repo, "sha": COMMIT, "private": False, "gated": False, "disabled": False, "tags": [], "downloads": 0,
        "likes": 0, "author": repo.split("/")[0], "lastModified": "2025-01-01T00:00:00.000Z", "siblings": [{"rfilename": name} for name in files],
    }  # fmt: skip

    class Hub(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

        def reply(self, data: bytes, code: int = 200, **headers: str) -> None:
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def json(self, value: object) -> None:
            self.reply(json.dumps(value).encode(), Content_Type="application/json")

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            api = f"/api/datasets/{repo}"
            revision, _, name = path.removeprefix(f"/datasets/{repo}/resolve/").partition("/")
            if path in {api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"}:
                self.json(info)
            elif path.startswith(f"{api}/tree/"):
                self.json(entries if path.count("/") == 6 else [])
            elif path.startswith(f"/datasets/{repo}/resolve/") and revision in {"main", COMMIT} and name in files:
                self.reply(files[name], X_Repo_Commit=COMMIT, ETag=f'"{oids[name]}"', Accept_Ranges="bytes")
            else:
                code = "EntryNotFound" if path.startswith(f"/datasets/{repo}/resolve/") else "RepoNotFound"
                self.reply(b"", 404, X_Error_Code=code)

        do_HEAD = do_GET

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
            wanted = set(body.get("paths", []))
            self.json([entry for entry in entries if entry["path"] in wanted])

    return Hub


if __name__ == "__main__":
    given = dict(item.split("=", 1) for item in sys.argv[2:])
    served = {f"{split}.jsonl": Path(path).read_bytes() for split, path in given.items()}
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(sys.argv[1], served))
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
