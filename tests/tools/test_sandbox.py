"""The sandbox in every layer that runs here: limits, walls, and nothing left over."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from inference.tools.errors import DataError
from inference.tools.sandbox import LAYERS, Limits, Outcome, Sandbox, SandboxError
from tests.tools.processes import running_with

ROOT = Path(__file__).resolve().parents[2]
LINUX = sys.platform.startswith("linux")
QUICK = Limits(wall_s=5, cpu_s=5, memory_mb=512)


@pytest.fixture(scope="module", params=LAYERS)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    try:
        return Sandbox(request.param)
    except DataError as error:
        pytest.skip(f"this layer does not run here: {error}")


def run(
    sandbox: Sandbox, code: str, *, limits: Limits = QUICK, stdin: bytes = b"", arguments: tuple[str, ...] = ()
) -> Outcome:
    code = textwrap.dedent(code)
    return sandbox.run({"program.py": code}, ["program.py"], stdin=stdin, arguments=arguments, limits=limits)


def printed(outcome: Outcome) -> str:
    assert outcome.exit_code == 0, outcome
    return outcome.stdout.decode().strip()


def test_streams_arguments_and_exit_code(sandbox: Sandbox) -> None:
    code = """
        import sys
        print(sys.stdin.read(), sys.argv[1:], __name__)
        print("no", file=sys.stderr)
        exit(3)
    """
    outcome = run(sandbox, code, stdin="ä".encode(), arguments=("a b",))
    assert outcome.stdout.decode() == "ä ['a b'] __main__\n"
    assert outcome.stderr == b"no\n"
    assert (outcome.exit_code, outcome.signal, outcome.timed_out, outcome.overflow) == (3, None, False, False)


def test_traceback_starts_in_the_program(sandbox: Sandbox) -> None:
    outcome = run(sandbox, "def f():\n    return 1 / 0\nf()\n")
    assert outcome.exit_code == 1
    lines = outcome.stderr.decode().splitlines()
    assert lines[0].startswith("Traceback") and "program.py" in lines[1] and lines[-1].startswith("ZeroDivisionError")
    assert "boot.py" not in outcome.stderr.decode()


def test_files_share_one_main(sandbox: Sandbox) -> None:
    outcome = sandbox.run({"a.py": "import math\n", "b.py": "print(math.floor(2.5))\n"}, ["a.py", "b.py"], limits=QUICK)
    assert printed(outcome) == "2"


def test_packages_and_deep_recursion(sandbox: Sandbox) -> None:
    code = """
        import numpy, sympy
        def depth(n):
            return 0 if n == 0 else 1 + depth(n - 1)
        print(numpy.arange(3).sum(), sympy.Rational(1, 2), depth(20000))
    """
    assert printed(run(sandbox, code, limits=Limits(20, 20))) == "3 1/2 20000"


def test_no_keys_in_the_environment(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "TAVILY_API_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, "secret-value")
    seen = printed(run(sandbox, "import os; print(sorted(os.environ), list(os.environ.values()))"))
    assert "KEY" not in seen and "TOKEN" not in seen and "secret-value" not in seen


def test_hash_order_is_fixed(sandbox: Sandbox) -> None:
    code = "print(list({'a', 'b', 'c', 'd', 'e', 'f'}))"
    assert printed(run(sandbox, code)) == printed(run(sandbox, code))


def test_sleep_ends_at_the_wall_limit(sandbox: Sandbox) -> None:
    outcome = run(sandbox, "print(1, flush=True)\nimport time\ntime.sleep(600)", limits=Limits(0.5, 5))
    assert outcome.timed_out and outcome.exit_code is None and outcome.stdout == b"1\n"


def test_a_loop_ends_at_the_cpu_limit(sandbox: Sandbox) -> None:
    outcome = run(sandbox, "while True: pass", limits=Limits(60, 1))
    assert outcome.timed_out and outcome.exit_code is None


def test_signals_that_a_program_can_catch_do_not_save_it(sandbox: Sandbox) -> None:
    code = """
        import signal
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM, signal.SIGXCPU, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        while True:
            try:
                while True: pass
            except BaseException: pass
    """
    assert run(sandbox, code, limits=Limits(1.5, 1)).timed_out


@pytest.mark.skipif(not LINUX, reason="macOS does not enforce the limit of address space")
def test_memory_limit(sandbox: Sandbox) -> None:
    outcome = run(sandbox, "x = [0] * 10**10")
    assert outcome.exit_code == 1 and b"MemoryError" in outcome.stderr


def test_file_size_limit(sandbox: Sandbox) -> None:
    outcome = run(sandbox, "open('big', 'wb').write(bytes(50 << 20))", limits=Limits(5, 5, tmp_mb=8))
    assert outcome.exit_code != 0


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_output_beyond_the_cap_ends_the_program(sandbox: Sandbox, stream: str) -> None:
    code = f"import sys\nwhile True: sys.{stream}.write('x' * 100000)"
    outcome = run(sandbox, code, limits=Limits(10, 10, output_bytes=5000))
    assert outcome.overflow and not outcome.timed_out
    assert getattr(outcome, stream) == b"x" * 5000


def test_output_up_to_the_cap_is_whole(sandbox: Sandbox) -> None:
    outcome = run(sandbox, "print('x' * 299999)", limits=Limits(5, 5, output_bytes=300000))
    assert len(outcome.stdout) == 300000 and not outcome.overflow and outcome.exit_code == 0


def test_large_input_that_nobody_reads(sandbox: Sandbox) -> None:
    assert printed(run(sandbox, "print(7)", stdin=b"x" * 3_000_000)) == "7"
    assert printed(run(sandbox, "import sys; print(len(sys.stdin.read()))", stdin=b"x" * 3_000_000)) == "3000000"


@pytest.mark.skipif(not LINUX, reason="looks at /proc")
@pytest.mark.parametrize("how", ["plain", "own session", "double fork"])
def test_children_end_with_the_program(sandbox: Sandbox, how: str) -> None:
    mark = secrets.token_hex(8)
    code = f"""
        import os, subprocess, sys, time
        child = ["sh", "-c", "sleep 300; : {mark}"]
        how = {how!r}
        if how == "double fork":
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.execvp("sh", child)
                os._exit(0)
        else:
            subprocess.Popen(child, start_new_session=how == "own session")
        time.sleep(0.3)
        print("left")
    """
    outcome = run(sandbox, code)
    assert printed(outcome) == "left" and outcome.seconds < 5, outcome
    assert running_with(mark) == []


@pytest.mark.skipif(not LINUX, reason="looks at /proc")
def test_fork_bomb_is_bounded_and_cleared(sandbox: Sandbox) -> None:
    mark = "bomb" + secrets.token_hex(8)
    code = """
        import os, sys, time
        while True:
            try:
                os.fork()
            except OSError:
                time.sleep(0.01)
    """
    files, limits = {"program.py": textwrap.dedent(code)}, Limits(1, 1, processes=16)
    outcome = sandbox.run(files, ["program.py"], arguments=[mark], limits=limits)
    assert outcome.exit_code is None
    assert running_with(mark) == []


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the sandbox makes its folders, for this test alone; every user may pass through."""
    home = Path(tempfile.mkdtemp())
    home.chmod(0o711)
    monkeypatch.setattr(tempfile, "tempdir", str(home))
    yield home
    shutil.rmtree(home)


def test_only_its_own_folder_can_be_written(sandbox: Sandbox, tmp_path: Path, folders: Path) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("here")
    tmp_path.chmod(0o755)
    precious.chmod(0o644)
    code = f"""
        import os, shutil
        open("mine", "w").write("x")
        for path in ("../up", "/up", {str(precious)!r}, {str(ROOT / "up")!r}, "/usr/up"):
            try: open(path, "w").write("gone")
            except OSError: pass
        for path in ("../box", {str(tmp_path)!r}, os.getcwd()):
            shutil.rmtree(path, ignore_errors=True)
    """
    if sandbox.layer == "rlimits" and os.getuid() != 0:
        pytest.skip("without isolation and without root the program is our own user and could write")
    run(sandbox, code)
    assert precious.read_text() == "here" and not (ROOT / "up").exists() and not Path("/usr/up").exists()
    assert os.listdir(folders) == []


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.makedirs('a/b'); os.chmod('a/b', 0); os.chmod('a', 0)",
        "import os\nfor _ in range(1100):\n    os.mkdir('d'); os.chdir('d')\n",
        "import os; os.symlink('/', 'root'); os.mkfifo('pipe')",
    ],
    ids=["locked folders", "very deep folders", "links and pipes"],
)
def test_the_folder_is_removed_whatever_is_in_it(sandbox: Sandbox, code: str, folders: Path) -> None:
    assert run(sandbox, code).exit_code == 0
    assert os.listdir(folders) == []


def test_no_network_and_no_view_of_the_host(sandbox: Sandbox) -> None:
    if sandbox.layer == "rlimits":
        pytest.skip("limits alone hide nothing; the module says so")
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f"""
            import os, socket
            try:
                socket.create_connection(("127.0.0.1", {server.getsockname()[1]}), timeout=2)
                print("connected")
            except OSError:
                print("no network")
            print(os.path.exists({str(ROOT)!r}), os.path.exists("/etc/passwd"), sorted(os.listdir("/")))
            print(len([name for name in os.listdir("/proc") if name.isdigit()]) < 5)
            for path in ("/box/x", "/usr/x", "/x", "/dev/x"):
                try: open(path, "w"); print("wrote", path)
                except OSError: pass
        """
        lines = printed(run(sandbox, code)).splitlines()
    assert lines[0] == "no network"
    assert lines[1].startswith("False False") and "home" not in lines[1] and "var" not in lines[1]
    assert lines[2:] == ["True"]


@pytest.mark.skipif(not LINUX or os.getuid() != 0, reason="only root starts programs as other users")
def test_root_runs_programs_as_users_of_their_own(sandbox: Sandbox) -> None:
    code = f"""
        import os
        try:
            os.kill({os.getpid()}, 0)
            print("reached the parent")
        except OSError: pass
        try:
            os.setuid(0)
            print("root again")
        except OSError: pass
        print(os.getuid(), os.getgroups(), open("/proc/self/status").read().split("CapEff:")[1].split()[0])
    """
    with ThreadPoolExecutor(4) as pool:
        shown = [printed(outcome).split() for outcome in pool.map(lambda _: run(sandbox, code), range(4))]
    assert all(row[0] != "0" and row[1] == "[]" and int(row[2], 16) == 0 and len(row) == 3 for row in shown), shown
    assert len({row[0] for row in shown}) == 4


@pytest.mark.skipif(not LINUX, reason="looks at /proc")
def test_eight_hostile_programs_at_a_time(sandbox: Sandbox) -> None:
    mark = secrets.token_hex(8)
    child = f"import subprocess; subprocess.Popen(['sh', '-c', 'sleep 300; : {mark}'], start_new_session=True)\n"
    hostile = [
        child + "while True: pass",
        child + "x = [0] * 10**10",
        child + "while True: print('x' * 10**6)",
        child + "import os; os.kill(os.getppid(), 9)",
        child + "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        child + "import os; os._exit(0)",
        child + "import time; time.sleep(100)",
        child + "import ctypes; ctypes.string_at(0)",
    ]
    limits = Limits(2, 1, memory_mb=512, processes=16, output_bytes=10_000)
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda code: run(sandbox, code, limits=limits), hostile))
    assert [outcome.timed_out for outcome in outcomes][0::6] == [True, True]
    assert outcomes[2].overflow and len(outcomes[2].stdout) == 10_000
    assert outcomes[5].exit_code == 0
    assert running_with(mark) == []
    assert printed(run(sandbox, "print('well')")) == "well"


@pytest.mark.skipif(not LINUX, reason="looks at /proc")
def test_programs_end_when_we_are_killed(sandbox: Sandbox) -> None:
    mark = secrets.token_hex(8)
    script = f"""
        import sys
        sys.path.insert(0, {str(ROOT)!r})
        from inference.tools.sandbox import Limits, Sandbox
        sandbox = Sandbox({sandbox.layer!r})
        print("up", flush=True)
        sandbox.run({{"p.py": "import time; time.sleep(300)"}}, ["p.py"], arguments=[{mark!r}], limits=Limits(300, 300))
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE) as ours:
        assert ours.stdout is not None and ours.stdout.readline() == b"up\n"
        for _ in range(200):
            if any("boot.py" in line for line in _now(mark)):
                break
            time.sleep(0.02)
        time.sleep(0.5)  # past the boot script, into the program
        ours.send_signal(signal.SIGKILL)
    left = [line for line in running_with(f"arg={mark}") if "boot.py" in line]
    for folder in Path(tempfile.gettempdir()).glob("sandbox-*"):
        if folder.stat().st_uid not in (0, os.getuid()) or (folder / "box" / "p.py").exists():
            shutil.rmtree(folder, ignore_errors=True)  # nobody was left to remove it
    assert left == []


def _now(mark: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            found += [line] if mark in line and "boot.py" in line else []
    return found


def test_the_strongest_layer_is_chosen() -> None:
    works = []
    for layer in LAYERS:
        try:
            works.append(Sandbox(layer).layer)
        except DataError as error:
            assert layer in str(error) and "\n" not in str(error)
    assert Sandbox().layer == works[0]


def test_bad_requests_are_told_in_a_sentence() -> None:
    with pytest.raises(DataError, match="'docker' is unknown; expected one of bubblewrap, namespaces, rlimits"):
        Sandbox("docker")
    with pytest.raises(DataError, match="bubblewrap: /nowhere/bwrap does not run"):
        Sandbox("bubblewrap", bwrap="/nowhere/bwrap")
    with pytest.raises(DataError, match="no sandbox works here"):
        Sandbox(python="/nowhere/python")


def test_a_sandbox_that_breaks_later_is_not_the_program(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    try:
        sandbox = Sandbox("rlimits", python=str(python))
    except DataError as error:
        pytest.skip(f"this layer does not run here: {error}")
    python.unlink()
    with pytest.raises(SandboxError, match="python"):
        run(sandbox, "print(1)")
    assert sandbox._uids_in_use == set()


@pytest.mark.skipif(
    not LINUX or os.getuid() != 0 or not shutil.which("setpriv"), reason="takes namespaces away by setpriv, as root"
)
def test_limits_alone_come_with_one_warning() -> None:
    script = f"""
        import json, sys, warnings
        sys.path.insert(0, {str(ROOT)!r})
        from inference.tools.sandbox import Sandbox
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            sandbox = Sandbox(bwrap="/nowhere/bwrap")
            outcome = sandbox.run({{"p.py": "print(5)"}}, ["p.py"])
        print(json.dumps([sandbox.layer, outcome.stdout.decode(), [str(one.message) for one in caught]]))
    """
    command = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", "--", sys.executable, "-c"]
    done = subprocess.run([*command, textwrap.dedent(script)], capture_output=True, text=True, check=True)
    layer, stdout, warned = json.loads(done.stdout)
    assert (layer, stdout) == ("rlimits", "5\n")
    assert len(warned) == 1 and "without isolation" in warned[0] and "namespaces" in warned[0]
