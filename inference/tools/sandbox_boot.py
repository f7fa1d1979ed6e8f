"""What runs first inside a sandboxed process: walls, limits, loss of privileges; then the program, in the same interpreter.

Started by `sandbox.py` as `python -s -S -B boot.py key=value...`, never imported. It needs nothing but the standard library,
and of that as little as possible: each import here is paid by every program that is run. Keys (all numbers in bytes, seconds or
counts): ready (descriptor told when the program may start), parent (pid that must be alive), cpu, memory, file, processes, open,
stack (limits), uid (to become, as root), anchor=1 (see `_anchor`), lock=1 (give up all privileges by prctl), root, tmp, shm, box
(build a mount namespace there), read (path visible inside, repeated), site (package folder, repeated), cwd,
run (file to execute as `__main__`, repeated), arg (for sys.argv, repeated).
"""

import os
import sys

_LIMITS = {
    "cpu": "RLIMIT_CPU",
    "memory": "RLIMIT_AS",
    "file": "RLIMIT_FSIZE",
    "processes": "RLIMIT_NPROC",
    "open": "RLIMIT_NOFILE",
    "stack": "RLIMIT_STACK",
}
_RECURSION = 50_000  # recursive solutions of competition tasks go deeper than Python's 1000
_NOBODY = 65534
_SETUP_FAILED = 125


def _parse(arguments):
    single, several = {}, {"read": [], "site": [], "run": [], "arg": []}
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key in several:
            several[key].append(value)
        else:
            single[key] = value
    return single, several


def _set_limits(options):
    import resource

    for key, name in _LIMITS.items():
        if key not in options or not hasattr(resource, name):
            continue
        wanted = int(options[key])
        _, hard = resource.getrlimit(getattr(resource, name))
        if hard != resource.RLIM_INFINITY:
            wanted = min(wanted, hard)
        # One more CPU second for the hard limit: the soft one ends the program with a signal of its own, which tells why.
        upper = wanted + 1 if key == "cpu" and hard == resource.RLIM_INFINITY else wanted
        try:
            resource.setrlimit(getattr(resource, name), (wanted, upper))
        except (ValueError, OSError):
            if sys.platform.startswith("linux"):
                raise  # macOS refuses some limits; there the program runs without them
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _libc():
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)

    def call(name, *arguments):
        if getattr(library, name)(*arguments) == -1:
            number = ctypes.get_errno()
            raise OSError(number, f"{name}: {os.strerror(number)}")

    return ctypes, call


def _lock(parent):
    """No new privileges by exec, no capabilities, death with the parent process."""
    ctypes, call = _libc()
    long = ctypes.c_ulong
    call("prctl", 38, long(1), long(0), long(0), long(0))  # PR_SET_NO_NEW_PRIVS
    call("capset", (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)())
    call("prctl", 1, long(9), long(0), long(0), long(0))  # PR_SET_PDEATHSIG
    if parent and os.getppid() != parent:
        os._exit(_SETUP_FAILED)  # it died before we asked to be told


def _mount_all(root, box, readable, tmp, shm):
    """A new root in `root`: the readable paths read-only, small /tmp, /cwd and /dev, /proc, the box."""
    ctypes, call = _libc()
    recursive, bind, nosuid, nodev, noexec = 0x4000, 0x1000, 0x2, 0x4, 0x8

    def mount(source, target, kind, flags, data=None):
        parts = [None if part is None else part.encode() for part in (source, target, kind)]
        call("mount", *parts, ctypes.c_ulong(flags), None if data is None else data.encode())

    def read_only(path, flags, recursion):
        attributes = (ctypes.c_uint64 * 4)(flags, 0, 0, 0)
        arguments = (-100, path.encode(), recursion, ctypes.byref(attributes), ctypes.c_size_t(32))
        call("syscall", ctypes.c_long(442), *arguments)  # mount_setattr; glibc before 2.36 has no name for it

    def show(path, target, flags):
        if os.path.islink(path):
            os.symlink(os.readlink(path), target)
            return
        if os.path.isdir(path):
            os.makedirs(target, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o644))
        mount(path, target, None, bind | recursive)
        if flags:
            read_only(target, flags, 0x8000)  # AT_RECURSIVE

    mount(None, "/", None, recursive | 0x40000)  # MS_PRIVATE: nothing done here reaches the host
    mount("tmpfs", root, "tmpfs", nosuid | nodev, "size=1m,mode=0755")
    for name in ("proc", "dev", "tmp", "cwd"):
        os.mkdir(f"{root}/{name}")
    mount("proc", f"{root}/proc", "proc", nosuid | nodev | noexec)
    for name in ("null", "zero", "full", "random", "urandom"):
        show(f"/dev/{name}", f"{root}/dev/{name}", 0)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"{root}/dev/{name}")
    os.mkdir(f"{root}/dev/shm")
    mount("tmpfs", f"{root}/dev/shm", "tmpfs", nosuid | nodev, f"size={shm},mode=1777")
    for name in ("tmp", "cwd"):
        mount("tmpfs", f"{root}/{name}", "tmpfs", nosuid | nodev, f"size={tmp},mode=1777")
    for path in readable:
        show(path, root + path, 1 | 2 | 4)  # read-only, no set-uid, no devices
    show(box, f"{root}/box", 1 | 2 | 4)
    read_only(root, 1 | 2 | 4, 0)
    os.chdir(root)
    call("pivot_root", b".", b".")
    call("umount2", b".", 2)  # MNT_DETACH: the old root is gone
    os.chdir("/")


def _namespaces(options, readable):
    """Own mounts, processes, network, IPC and host name; a user namespace too unless we are root. Returns in the innermost
    process; the two above it wait and hand its exit status up."""
    ctypes, call = _libc()
    uid, gid = os.getuid(), os.getgid()
    flags = 0x00020000 | 0x20000000 | 0x40000000 | 0x08000000 | 0x04000000  # NS, PID, NET, IPC, UTS
    call("unshare", flags | (0x10000000 if uid else 0))
    if uid:
        for name, text in (("setgroups", "deny"), ("gid_map", f"{_NOBODY} {gid} 1"), ("uid_map", f"{_NOBODY} {uid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    die_with_parent = (1, *(ctypes.c_ulong(value) for value in (9, 0, 0, 0)))  # PR_SET_PDEATHSIG, SIGKILL
    call("prctl", *die_with_parent)
    first = os.fork()
    if first:
        os._exit(_code(os.waitpid(first, 0)[1]))
    call("prctl", *die_with_parent)
    _mount_all(options["root"], options["box"], readable, options["tmp"], options["shm"])
    program = os.fork()
    if program:
        while True:  # process 1 of the namespace: reap whatever is left to it; its end ends them all
            child, status = os.waitpid(-1, 0)
            if child == program:
                os._exit(_code(status))


def _code(status):
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def _anchor(paths):
    """The same folders by way of open descriptors, for a user who may not walk to them (an interpreter below /root)."""
    anchored = {}
    for path in paths:
        if os.path.isdir(path):
            descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY)
            os.set_inheritable(descriptor, True)
            anchored[path] = f"/proc/self/fd/{descriptor}"
    for module in list(sys.modules.values()):
        places = getattr(module, "__path__", None)
        if isinstance(places, list):
            for index, place in enumerate(places):
                home = max((path for path in anchored if place.startswith(path + "/")), key=len, default=None)
                if home:
                    places[index] = anchored[home] + place[len(home) :]
    sys.path_importer_cache.clear()
    return [anchored.get(path, path) for path in paths]


def _builtins():
    """`exit` and `quit`, which programs use and which the site module, not loaded here, would add."""
    import _sitebuiltins
    import builtins

    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))


def _execute(paths):
    """Run files one after the other in one fresh `__main__`, as scripts. Tracebacks start in the program, not here."""
    from importlib.machinery import SourceFileLoader

    def show(kind, error, trace):
        inner = trace
        while inner is not None and inner.tb_frame.f_code.co_filename not in paths:
            inner = inner.tb_next
        sys.__excepthook__(kind, error.with_traceback(inner), inner)

    sys.excepthook = show
    module = type(sys)("__main__")
    sys.modules["__main__"] = module
    for path in paths:
        module.__file__ = path
        SourceFileLoader("__main__", path).exec_module(module)


def main():
    del sys.path[0]  # the folder of this file; programs see packages, not the box
    options, several = _parse(sys.argv[1:])
    ready = int(options["ready"])
    try:
        os.umask(0o022)
        site = several["site"]
        if "root" in options:
            _namespaces(options, several["read"])
        if "anchor" in options:
            sys.path[:], site = _anchor(sys.path), _anchor(site)
        os.chdir(options["cwd"])
        _builtins()
        from importlib.machinery import SourceFileLoader  # noqa: F401  loaded while the library can be read

        _set_limits(options)
        if "uid" in options:
            os.setgroups([])
            os.setgid(int(options["uid"]))
            os.setuid(int(options["uid"]))
        if "lock" in options:
            _lock(int(options.get("parent", 0)))
        sys.path.extend(site)
        sys.setrecursionlimit(_RECURSION)
        sys.argv[:] = [several["run"][-1], *several["arg"]]
        os.umask(0o077)
    except OSError as error:
        os.write(2, f"sandbox: {error}\n".encode())
        os._exit(_SETUP_FAILED)
    os.write(ready, b"1")
    os.close(ready)
    _execute(several["run"])


if __name__ == "__main__":
    main()
