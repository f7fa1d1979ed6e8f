"""Inside the sandbox, next to the program under test: loads it and calls what the examiner asks for.

The examiner runs the tests in another sandboxed process. This side never sees an expected value, so whatever a program does
to this interpreter, it can only answer calls. Arguments arrive as data and are built anew for each call. Arguments of the
script: descriptors to read from and to write to, CPU seconds for each call (0: no limit of its own), names of the files to load.
"""

import json
import sys
from importlib.machinery import SourceFileLoader

BOX = __file__.rpartition("/")[0]
wire = type(sys)("wire")
SourceFileLoader("wire", f"{BOX}/wire.py").exec_module(wire)

_OPERATIONS = {
    "attribute": getattr,
    "call": lambda target, *arguments, **named: target(*arguments, **named),
    "item": lambda target, key: target[key],
    "list": list,
    "length": len,
    "text": str,
    "truth": bool,
}


def load(files):
    """The program's namespace. Its name is not `__main__`: blocks for use as a script don't run."""
    module = type(sys)("solution")
    sys.modules["solution"] = module
    for name in files:
        module.__file__ = f"{BOX}/{name}"
        SourceFileLoader("solution", module.__file__).exec_module(module)
    return module


def find(module, name):
    """The function asked for, or a method of a new `Solution`; None if there is neither."""
    solution = vars(module).get("Solution")
    if isinstance(solution, type) and hasattr(solution, name):
        return getattr(solution(), name)
    return vars(module).get(name)


def limit_cpu(seconds):
    import resource

    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = int(usage.ru_utime + usage.ru_stime) + 1 + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def describe(error):
    kinds = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"]
    try:
        text = str(error)[:500]
    except Exception:  # a program's own exception may fail at this too
        text = "(no text)"
    return {"raised": kinds, "type": type(error).__name__[:100], "text": text}


def answer(module, request, kept, keep):
    """The packed result of one request."""
    operation = request["operation"]
    if operation == "has":
        return callable(find(module, request["name"]))
    if operation == "named":
        return wire.pack(find(module, request["name"]), keep)
    if "json" in request:
        arguments, named = [json.loads(line) for line in request["json"]], {}
    else:
        arguments = wire.unpack(request["arguments"], kept.__getitem__)
        named = wire.unpack(request["named"], kept.__getitem__)
    target = request["target"]
    target = find(module, target) if isinstance(target, str) else kept[target]
    return wire.pack(_OPERATIONS[operation](target, *arguments, **named), keep)


def serve(requests, replies, cpu_seconds, files):
    kept = []

    def keep(value):
        kept.append(value)
        return len(kept) - 1

    try:
        module = load(files)
    except BaseException as error:  # SystemExit too: a program that ends while it is loaded has failed
        wire.send(replies, {"loaded": False, "compiled": not isinstance(error, SyntaxError), **describe(error)})
        return
    wire.send(replies, {"loaded": True})
    while True:
        try:
            request = wire.receive(requests)
        except EOFError:
            return
        try:
            if cpu_seconds:
                limit_cpu(cpu_seconds)
            reply = {"value": answer(module, request, kept, keep)}
        except BaseException as error:
            reply = describe(error)
        try:
            wire.send(replies, reply)
        except wire.WireError as error:
            wire.send(replies, describe(error))


def main():
    reading, writing, cpu_seconds, *files = sys.argv[1:]
    sys.argv[1:] = []
    with open(int(reading), "rb") as requests, open(int(writing), "wb") as replies:
        serve(requests, replies, int(cpu_seconds), files)


if __name__ == "__main__":
    main()
