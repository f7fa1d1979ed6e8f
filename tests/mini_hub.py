"""A miniature Hugging Face hub: a local HTTP server that answers the real client, and repos in the released layout.

    with MiniHub(tmp_path / "hub") as hub:
        (hub.folder / "datasets/ORG/NAME").mkdir(parents=True)          # a repo is a plain folder of files
        subprocess.run([...], env={**os.environ, **hub.env(tmp_path / "cache")})

`models/ORG/NAME` and `datasets/ORG/NAME` are the repos; `NAME@REVISION` beside one is another branch of it. A commit's
name is a hash of its files. `env` is for a process of its own, because the client reads its settings when imported.
The knobs play what a hub does to its users: `down`, `gated`, `cut` (a file's name: the connection breaks half-way).
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import torch

from inference.mas.links import InnerLink, OuterLink
from inference.mas.styles import Style, load_style
from tests.tiny_models import make_lm

KINDS = ("models", "datasets")
# The base models of the released styles: family, and a small width that differs between neighbours where the real ones do.
BASES = {
    "Qwen/Qwen3-1.7B": ("qwen3", 32),
    "meta-llama/Llama-3.2-1B-Instruct": ("llama", 32),
    "Qwen/Qwen2.5-Math-1.5B-Instruct": ("qwen2", 48),
    "google/gemma-3-4b-it": ("gemma3_wrapper", 32),
    "meta-llama/Llama-3.2-3B-Instruct": ("llama", 48),
    "Qwen/Qwen3.5-4B": ("qwen3_5", 48),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": ("deepseek", 24),
    "Qwen/Qwen2.5-Coder-3B-Instruct": ("qwen2", 32),
    "BioMistral/BioMistral-7B": ("mistral", 64),
    "Qwen/Qwen3.5-2B": ("qwen3_5", 32),
    "Qwen/Qwen3.5-9B": ("qwen3_5", 64),
}
# Styles whose links come in a math and a code set; the others have one set for everything.
TASK_SCOPED = ("sequential_light", "sequential_scaled", "distillation")


class MiniHub:
    """The server; a context manager. `requests` lists (method, path) of everything asked."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.down = False
        self.gated: set[str] = set()
        self.cut: set[str] = set()
        self.requests: list[tuple[str, str]] = []
        for kind in KINDS:
            (self.folder / kind).mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> MiniHub:
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    @property
    def url(self) -> str:
        """Address of the server, for HF_ENDPOINT."""
        return f"http://127.0.0.1:{self.server.server_port}"

    def env(self, cache: str | Path) -> dict[str, str]:
        """Environment variables with which a process talks to this hub only and keeps its cache in `cache`."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(cache),
            "HF_HUB_CACHE": str(Path(cache) / "hub"),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "NO_PROXY": "127.0.0.1",
        }

    def repo(self, name: str, kind: str = "models") -> Path:
        """The folder of a repo."""
        return self.folder / kind / name

    def find(self, kind: str, name: str, revision: str) -> tuple[Path | None, bool]:
        """The folder of a repo's revision (branch or commit), and whether the repo exists at all."""
        main = self.folder / kind / name
        if not main.is_dir():
            return None, False
        for folder in [main, *sorted(main.parent.glob(f"{main.name}@*"))]:
            branch = folder.name.partition("@")[2] or "main"
            if revision in (branch, commit_of(folder)):
                return folder, True
        return None, True


def files_of(folder: Path) -> list[str]:
    """Names of a repo's files, relative to it."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def commit_of(folder: Path) -> str:
    """40 hex digits that stand for the state of a repo's files."""
    digest = hashlib.sha1()
    for name in files_of(folder):
        digest.update(name.encode() + b"\0" + (folder / name).read_bytes() + b"\0")
    return digest.hexdigest()


class _Handler(BaseHTTPRequestHandler):
    hub: MiniHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer()

    def do_HEAD(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    def answer(self, body: bytes = b"") -> None:
        url = urlsplit(self.path)
        path = unquote(url.path)
        self.hub.requests.append((self.command, path))
        if self.hub.down:
            return self.reply(503, {"error": "down"})
        api = re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(revision|tree|paths-info|refs)(?:/(.*))?)?", path)
        if api:
            return self.api(*api.groups(), body)
        file = re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if file:
            return self.file("datasets" if file[1] else "models", *file.groups()[1:])
        return self.reply(404, {"error": "no such page"})

    def folder(self, kind: str, name: str, revision: str) -> Path | None:
        """The folder asked for; None after the error that the hub gives has been sent."""
        folder, exists = self.hub.find(kind, name, revision)
        if folder is None:
            self.reply(404, {"error": "not found"}, {"X-Error-Code": "RevisionNotFound" if exists else "RepoNotFound"})
        return folder

    def api(self, kind: str, name: str, part: str | None, rest: str | None, body: bytes) -> None:
        revision, _, inside = (rest or "main").partition("/")
        folder = self.folder(kind, name, "main" if part == "refs" else revision)
        if folder is None:
            return
        commit = commit_of(folder)
        if part == "refs":
            main = {"name": "main", "ref": "refs/heads/main", "targetCommit": commit}
            return self.reply(200, {"branches": [main], "tags": [], "converts": []})
        if part == "tree":
            return self.reply(200, [entry for entry in entries(folder) if entry["path"].startswith(inside)])
        if part == "paths-info":
            wanted = json.loads(body)["paths"] if body[:1] == b"{" else parse_qs(body.decode()).get("paths", [])
            return self.reply(200, [entry for entry in entries(folder) if entry["path"] in wanted])
        siblings = [{"rfilename": file} for file in files_of(folder)]
        info = {"_id": commit[:24], "id": name, "sha": commit, "private": False, "gated": False, "disabled": False}
        return self.reply(200, info | {"tags": [], "downloads": 0, "likes": 0, "siblings": siblings})

    def file(self, kind: str, name: str, revision: str, file: str) -> None:
        folder = self.folder(kind, name, revision)
        if folder is None:
            return None
        commit = {"X-Repo-Commit": commit_of(folder)}
        if name in self.hub.gated:
            return self.reply(403, {"error": "gated"}, commit | {"X-Error-Code": "GatedRepo"})
        if file not in files_of(folder):
            return self.reply(404, {"error": "no file"}, commit | {"X-Error-Code": "EntryNotFound"})
        data = (folder / file).read_bytes()
        headers = commit | {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "Accept-Ranges": "bytes"}
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if span is None:
            return self.send(200, data, headers, cut=file in self.hub.cut)
        start, end = int(span[1]), min(int(span[2] or len(data) - 1), len(data) - 1)
        headers["Content-Range"] = f"bytes {start}-{end}/{len(data)}"
        return self.send(206, data[start : end + 1], headers)

    def reply(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        self.send(status, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def send(self, status: int, data: bytes, headers: dict[str, str], cut: bool = False) -> None:
        self.send_response(status)
        for key, value in (headers | {"Content-Length": str(len(data))}).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        self.wfile.write(data[: len(data) // 2] if cut else data)
        if cut:
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Quiet."""


def entries(folder: Path) -> list[dict[str, Any]]:
    """Files and folders of a repo as the hub lists them."""
    names = files_of(folder)
    folders = sorted({parent.as_posix() for name in names for parent in Path(name).parents} - {"."})
    listed: list[dict[str, Any]] = [{"type": "directory", "path": name, "oid": "0" * 40, "size": 0} for name in folders]
    for name in names:
        data = (folder / name).read_bytes()
        listed.append({"type": "file", "path": name, "oid": hashlib.sha1(data).hexdigest(), "size": len(data)})
    return listed


def add_released(folder: str | Path, style_name: str, *, shards: bool = False, seed: int = 0) -> Style:
    """Put every repo of a released style into a hub's folder, with tiny random models, in the released layout.

    Task-scoped: an agent's repo has the model, `adapter_config.json`, `innerlink_config.json`, `adapter(math).pt` and
    `adapter(code).pt`; the outer repo `outerlink_config.json` with `tasks`, `outer_adapter_config(<set>).json` and
    `<Source>-<Target>-Outerlink(<set>).pt`. Untasked: `adapter.pt` and no `innerlink_config.json`; a flat list in
    `outerlink_config.json`, `outer_adapter_config.json` and `<Source>-<Target>-Outerlink.pt`. Links are bfloat16, as the
    released ones are. The base models are there too, in repos of their own.
    """
    style = load_style(style_name)
    models = Path(folder) / "models"
    sets = ("math", "code") if style_name in TASK_SCOPED else ("",)
    widths = {}
    torch.manual_seed(seed)
    for role in style.roles:
        family, width = BASES[role.model]
        number = list(BASES).index(role.model)
        repo = make_lm(family, models / role.repo, width=width, seed=seed + number, shards=shards)
        widths[role.name] = width
        shared = sorted(path.name for path in repo.iterdir())
        # The base model, which trainers start from, is a repo of its own.
        if not (models / role.model).exists():
            shutil.copytree(repo, models / role.model)
        files = {task: f"adapter({task}).pt" if task else "adapter.pt" for task in sets}
        for name in files.values():
            _save(InnerLink(width), repo / name)
        _json(repo / "adapter_config.json", {"adapter_type": "ln_res_adapter"})
        if style_name in TASK_SCOPED:
            manifest = {"format_version": 1, "paradigm": style.paradigm, **_variant(style)}
            manifest |= {"role": role.label, "backbone": role.model, "shared_files": shared}
            _json(
                repo / "innerlink_config.json",
                manifest | {"tasks": {task: {"adapter.pt": name} for task, name in files.items()}},
            )
        (repo / "README.md").write_text("A released agent.\n")
    outer = models / style.outer_repo
    outer.mkdir(parents=True)
    tasks: dict[str, Any] = {}
    for task in sets:
        suffix = f"({task})" if task else ""
        legacy: dict[str, Any] = {"mas_shape": style.mas_shape, "mas_task": task or "math"}
        adapters = []
        for link in style.links:
            source, target = widths[link.source], widths[link.target]
            labels = (style.role(link.source).label, style.role(link.target).label)
            name = f"{labels[0]}-{labels[1]}-Outerlink{suffix}.pt"
            _save(OuterLink(source, target), outer / name)
            ends = {"source_role": labels[0], "target_role": labels[1]} if task else {}
            sizes = {"in_dim": source, "out_dim": target}
            kind = "outer_ln_res_adapter"
            adapters.append({"legacy_key": link.key, "filename": name} | ends | {"adapter_type": kind} | sizes)
            legacy |= {f"{link.key}_type": kind, f"{link.key}_in_dim": source, f"{link.key}_out_dim": target}
        tasks[task] = {"task": task, "adapters": adapters}
        _json(outer / f"outer_adapter_config{suffix}.json", legacy)
    manifest = {"format_version": 1, "paradigm": style.paradigm, **_variant(style)}
    if style_name in TASK_SCOPED:
        manifest["tasks"] = tasks
    else:
        manifest |= {"legacy_config_filename": "outer_adapter_config.json", "adapters": tasks[""]["adapters"]}
    _json(outer / "outerlink_config.json", manifest)
    return style


def _variant(style: Style) -> dict[str, str]:
    return {"variant": style.variant} if style.variant else {}


def add_rows(folder: str | Path, name: str, rows: list[dict[str, Any]]) -> None:
    """Put a data set with one split, "train", into a hub's folder."""
    data = Path(folder) / "datasets" / name
    data.mkdir(parents=True)
    (data / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _save(link: InnerLink | OuterLink, path: Path) -> None:
    torch.save({key: value.to(torch.bfloat16) for key, value in link.state_dict().items()}, path)


def _json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2))
