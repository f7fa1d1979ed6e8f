"""Runs Python that nobody has read: a fresh process, limits, no keys, no network where the machine allows, nothing left over.

What it protects against, in every layer
- Time, memory, file size, processes and open files are limited; output is capped, and the reader never holds more than the cap.
- The environment is empty but for a path, a home and a language: no keys. The working folder is temporary and removed.
- The program runs in a session of its own and is killed from outside, with all that it started, when it ends or is late; no
  signal that it could catch is relied on.
- Started by root, the program runs as an unprivileged user of its own, so that the limit of processes holds for it and it can
  neither signal nor trace us or another program.

The layers, strongest first; `Sandbox.layer` is the name of the one in use, for manifests
- "bubblewrap": bwrap. No network; sees only the system's folders, the interpreter and its packages, all read-only, and a small
  /tmp and working folder in memory; own process, user, IPC and host-name spaces, so that nothing it starts can outlive it.
- "namespaces": the same walls, built by `sandbox_boot.py` itself (Linux 5.12 or later, as root or with user namespaces).
- "rlimits": the limits alone, after one warning. The program can use the network and read what its user can read. Unless we are
  root it *is* our user: it could delete our files and kill or trace our processes, and a child that leaves the session and
  clears its environment is not found again. For code of a model that may be wrong, not for code of an attacker.

What it does not protect against
- Holes in the kernel: every system call is open (no seccomp filter), and new user namespaces inside are not forbidden.
- Side channels, and a load on the machine within the limits: CPU time of other programs, memory up to the limit for each of
  its processes, files in memory up to `tmp_mb` twice (in "rlimits": as many files as it likes until it is killed).
- World-readable system files and installed packages are visible, so keep no secrets there.
- macOS has no namespaces and ignores the memory limit; Windows is not supported.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from inference.tools.confined import Confined, Outcome, SandboxError, Stream, processes_with, remove, supervise
from inference.tools.errors import DataError

__all__ = ["LAYERS", "Confined", "Limits", "Outcome", "Sandbox", "SandboxError", "Stream", "supervise"]

LAYERS = ("bubblewrap", "namespaces", "rlimits")
_BOOT = Path(__file__).with_name("sandbox_boot.py")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/etc/ld.so.cache", "/etc/alternatives")
_MB = 1 << 20
_SHM_MB = 16  # enough for the semaphores of multiprocessing
_STACK_MB = 64  # deep recursion of Python 3.10 uses the C stack
_OPEN_FILES = 256
_NOBODY = 65534
_FIRST_UID, _UIDS = (
    20_000,
    40_000,
)  # users of programs that root starts: above login users, inside the 65,536 of a container


@dataclass(frozen=True)
class Limits:
    """What one program may use. `cpu_s` is rounded up to whole seconds; `wall_s` counts from its own start. `output_bytes`
    holds for stdout and for stderr; `tmp_mb` is the size of /tmp and of the working folder (in
    "rlimits": of each file)."""

    wall_s: float = 10.0
    cpu_s: float = 10.0
    memory_mb: int = 1024
    tmp_mb: int = 64
    processes: int = 64
    output_bytes: int = _MB


class Sandbox:
    """Starts programs in the strongest layer that works here; one object may be used from many threads.

    `layer` forces one of `LAYERS` (`DataError` with the reason if it does not work); `python` is the interpreter (default:
    this one); `bwrap` the bubblewrap program (default: the one on the path).
    """

    def __init__(self, layer: str | None = None, *, python: str | None = None, bwrap: str | None = None) -> None:
        if layer is not None and layer not in LAYERS:
            raise DataError(f"sandbox layer {layer!r} is unknown; expected one of {', '.join(LAYERS)}")
        if os.name != "posix":
            raise DataError(f"the sandbox needs Linux or macOS and this is {sys.platform}; run code tasks there")
        self.python = python or sys.executable
        self._root = os.getuid() == 0
        self._bwrap = bwrap or shutil.which("bwrap")
        self._lock = threading.Lock()
        self._uids_in_use: set[int] = set()
        self._next_uid = random.SystemRandom().randrange(_UIDS)  # two runs of one machine rarely meet
        self._own_threads = 0 if self._root else _threads_of(os.getuid())
        self._site = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
        self._bwrap_flags: list[str] = []
        self._anchor = False
        failures = []
        for name in (layer,) if layer else LAYERS:
            self.layer = name
            reason = self._probe()
            if reason is None:
                break
            failures.append(f"{name}: {reason}")
        else:
            raise DataError(
                f"no sandbox works here ({'; '.join(failures)}); install bubblewrap, or run as a normal user"
            )
        if self.layer == "rlimits" and layer is None:
            warnings.warn(
                "programs run with limits but without isolation: neither bubblewrap nor namespaces work here "
                f"({'; '.join(failures)}); install bubblewrap for a sandbox without network",
                RuntimeWarning,
                stacklevel=2,
            )

    def run(
        self,
        files: Mapping[str, str],
        run: Sequence[str],
        *,
        stdin: bytes = b"",
        arguments: Sequence[str] = (),
        limits: Limits | None = None,
    ) -> Outcome:
        """Run a program to its end, and end all it started.

        `files` {plain name: text} lie in a read-only box; those named in `run` are executed in turn as one `__main__`, in an
        empty working folder. `SandboxError` if the sandbox itself fails.
        """
        with self.start(files, run, stdin=stdin, arguments=arguments, limits=limits) as running:
            supervise(running)
            return running.outcome()

    def start(
        self,
        files: Mapping[str, str],
        run: Sequence[str],
        *,
        stdin: bytes = b"",
        arguments: Sequence[str] = (),
        limits: Limits | None = None,
        keep: Sequence[int] = (),
        streams: Mapping[str, Stream] | None = None,
    ) -> Confined:
        """Start a program for `supervise`: as `run`; `keep` are descriptors that it inherits under their numbers (ours stay
        open), `streams` further pipes to drain. The thread that starts it must outlive it."""
        limits = limits or Limits()
        with contextlib.ExitStack() as undo:
            folder = Path(tempfile.mkdtemp(prefix="sandbox-"))
            undo.callback(remove, folder)
            uid = self._take_uid() if self._root else None
            undo.callback(self._give_uid, uid)
            for name in ("box", "work", "root"):
                (folder / name).mkdir(mode=0o700)
            for name, text in {**files, "boot.py": _BOOT.read_text(encoding="utf-8")}.items():
                (folder / "box" / name).write_text(text, encoding="utf-8", errors="surrogatepass")
            if uid is not None:
                for path in (folder, *folder.rglob("*")):
                    os.chown(path, uid, uid)
            theirs, ours = _pipes(uid)
            undo.callback(_close_all, ours)
            try:
                mark = secrets.token_hex(16)
                process = subprocess.Popen(
                    self._command(folder, run, arguments, limits, uid, theirs[3]),
                    stdin=theirs[0],
                    stdout=theirs[1],
                    stderr=theirs[2],
                    pass_fds=(theirs[3], *keep),
                    cwd=folder / "work",
                    env=_environment(mark, folder / "work" if self.layer == "rlimits" else Path("/cwd")),
                    start_new_session=True,
                )
            except OSError as error:
                raise SandboxError(f"{self.python}: {error.strerror}") from error
            finally:
                _close_all(theirs)
            undo.pop_all()  # from here on the folder, the user and the pipes are the process's, until it is closed
        sweep = partial(processes_with, mark.encode(), process.pid, uid) if self.layer == "rlimits" else tuple
        return Confined(
            process,
            folder=folder,
            stdin=(ours[0], stdin),
            ready=ours[3],
            streams={
                "stdout": Stream(ours[1], limits.output_bytes),
                "stderr": Stream(ours[2], limits.output_bytes),
                **(streams or {}),
            },
            wall_s=limits.wall_s,
            cpu_s=limits.cpu_s,
            sweep=sweep,
            wrapped=self.layer != "rlimits",
            on_close=partial(self._give_uid, uid),
        )

    def _command(
        self, folder: Path, run: Sequence[str], arguments: Sequence[str], limits: Limits, uid: int | None, ready: int
    ) -> list[str]:
        walls = self.layer != "rlimits"
        inside = self.layer == "bubblewrap"  # the box is already where the program sees it
        box = "/box" if walls else str(folder / "box")
        boot = [self.python, "-s", "-S", "-B", "-X", "utf8", f"{box if inside else folder / 'box'}/boot.py"]
        boot += [f"ready={ready}", f"cwd={'/cwd' if walls else folder / 'work'}"]
        boot += [f"cpu={max(1, -int(-limits.cpu_s // 1))}", f"memory={limits.memory_mb * _MB}"]
        boot += [f"file={limits.tmp_mb * _MB}", f"open={_OPEN_FILES}", f"stack={_STACK_MB * _MB}"]
        if self._root or sys.platform.startswith("linux"):
            boot.append(f"processes={limits.processes + self._own_threads}")
        boot += [f"site={path}" for path in self._site]
        boot += [f"run={box}/{name}" for name in run] + [f"arg={text}" for text in arguments]
        if uid is not None:
            boot.append(f"uid={uid}")
        if not inside and sys.platform.startswith("linux"):
            boot.append("lock=1")
        if self.layer == "rlimits":
            return [*boot, f"parent={os.getpid()}", *(["anchor=1"] if self._anchor else [])]
        if self.layer == "namespaces":
            sizes = [f"tmp={limits.tmp_mb * _MB}", f"shm={_SHM_MB * _MB}"]
            places = [
                f"root={folder / 'root'}",
                f"box={folder / 'box'}",
                *(f"read={path}" for path in self._readable()),
            ]
            return [*boot, *sizes, *places]
        return [*self._bwrap_command(folder, limits), *boot]

    def _bwrap_command(self, folder: Path, limits: Limits) -> list[str]:
        assert self._bwrap is not None
        command = [
            self._bwrap,
            "--unshare-ipc",
            "--unshare-pid",
            "--unshare-net",
            "--unshare-uts",
            "--unshare-cgroup-try",
        ]
        command += ["--die-with-parent", "--new-session"]
        if self._root:  # the boot script becomes a user of its own and so loses them
            command += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
            command += ["--cap-add", "CAP_DAC_READ_SEARCH"]
        else:
            command += ["--unshare-user", "--uid", str(_NOBODY), "--gid", str(_NOBODY)]
        command += ["--proc", "/proc", "--dev", "/dev"]
        for target, megabytes in (("/dev/shm", _SHM_MB), ("/tmp", limits.tmp_mb), ("/cwd", limits.tmp_mb)):
            if "--size" in self._bwrap_flags:
                command += ["--size", str(megabytes * _MB)]
            if "--perms" in self._bwrap_flags:
                command += ["--perms", "1777"]
            command += ["--tmpfs", target]
        readable = self._readable()
        if "--perms" in self._bwrap_flags:  # else only its owner, who is root, may pass the folders above a path
            parents = {str(parent) for path in readable for parent in Path(path).parents} - {"/", "/tmp"}
            for parent in sorted(parents):
                command += ["--perms", "0755", "--dir", parent]
        for path in readable:
            link = os.path.islink(path)
            command += ["--symlink", os.readlink(path), path] if link else ["--ro-bind", path, path]
        command += ["--ro-bind", str(folder / "box"), "/box", "--remount-ro", "/", "--chdir", "/cwd", "--"]
        return command

    def _readable(self) -> list[str]:
        """What a program sees of the file system: the system's programs and libraries, the interpreter, its packages."""
        interpreter = [os.path.dirname(os.path.realpath(self.python)), *self._site]
        if self.python == sys.executable:
            interpreter += [sys.prefix, sys.base_prefix, sys.exec_prefix]
        chosen: list[str] = []
        for path in [*_SYSTEM, *sorted(set(map(os.path.abspath, interpreter)), key=len)]:
            covered = any(path == seen or path.startswith(seen + "/") for seen in chosen)
            if os.path.exists(path) and not covered and path != "/":
                chosen.append(path)
        return chosen

    def _probe(self) -> str | None:
        """Why the layer does not work here; None if it does. It must start, write in its folder and find its libraries."""
        if self.layer == "bubblewrap":
            if self._bwrap is None:
                return "bwrap is not installed"
            if self._root and "/" in map(os.path.abspath, (sys.prefix, sys.base_prefix)):
                return "the interpreter's prefix is the root folder"
            try:
                shown = subprocess.run([self._bwrap, "--help"], capture_output=True, text=True, timeout=10, check=False)
            except (OSError, subprocess.TimeoutExpired) as error:
                return f"{self._bwrap} does not run: {error}"
            self._bwrap_flags = (shown.stdout + shown.stderr).split()
        if self.layer == "namespaces" and not sys.platform.startswith("linux"):
            return "only Linux has namespaces"
        reason = self._try_once()
        if reason is not None and self.layer == "rlimits" and self._root:
            self._anchor = sys.platform.startswith("linux")
            reason = self._try_once()
        return reason

    def _try_once(self) -> str | None:
        program = "import json, decimal\nopen('probe', 'w').write('x')\nprint(json.dumps([1]))\n"
        try:
            outcome = self.run({"probe.py": program}, ["probe.py"], limits=Limits(wall_s=20, cpu_s=20))
        except SandboxError as error:
            return str(error)
        if outcome.stdout.strip() == b"[1]":
            return None
        last = outcome.stderr.decode(errors="replace").strip().splitlines()
        return last[-1] if last else f"a test program ended with {outcome.exit_code}"

    def _take_uid(self) -> int:
        with self._lock:
            while True:
                self._next_uid = (self._next_uid + 1) % _UIDS
                uid = _FIRST_UID + self._next_uid
                if uid not in self._uids_in_use:
                    self._uids_in_use.add(uid)
                    return uid

    def _give_uid(self, uid: int | None) -> None:
        with self._lock:
            self._uids_in_use.discard(uid)  # type: ignore[arg-type]


def _environment(mark: str, home: Path) -> dict[str, str]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "TMPDIR": str(home),
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",  # the order of a set must not decide a verdict
        "PYTHONDONTWRITEBYTECODE": "1",
        "SANDBOX_RUN": mark,
        **threads,
    }


def _pipes(uid: int | None) -> tuple[list[int], list[int]]:
    """Their ends and ours of stdin, stdout, stderr and the start signal."""
    theirs, ours = [], []
    for inward in (True, False, False, False):
        read, write = os.pipe()
        theirs.append(read if inward else write)
        ours.append(write if inward else read)
        if uid is not None:
            os.fchown(theirs[-1], uid, uid)  # so that /dev/stdin can be opened
    return theirs, ours


def _close_all(descriptors: Sequence[int]) -> None:
    for fd in descriptors:
        os.close(fd)


def _threads_of(uid: int) -> int:
    """Threads that a user runs now; its limit of processes counts them too (Linux)."""
    total = 0
    if sys.platform.startswith("linux"):
        for entry in os.scandir("/proc"):
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and os.stat(entry.path).st_uid == uid:
                    total += len(os.listdir(f"{entry.path}/task"))
    return total
