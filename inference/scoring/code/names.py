"""Names that a program uses but never binds, and the imports that graders of the field supply for them.

The usual preamble (star imports of a dozen modules) costs each process some 50 ms and hides builtins. Here only what a program
needs is imported, and only where the name would be an error otherwise.
"""

from __future__ import annotations

import ast
import builtins

_MODULES = (
    "math cmath re sys os string random itertools functools collections heapq bisect operator copy json datetime time "
    "statistics decimal fractions typing io array queue"
).split()
_MEMBERS = {
    "typing": "List Dict Set Tuple Optional Union Any Callable Iterable Iterator Sequence Mapping Deque DefaultDict FrozenSet "
    "Generator TypeVar NamedTuple Literal Generic Type",
    "collections": "defaultdict Counter deque OrderedDict namedtuple ChainMap",
    "heapq": "heappush heappop heapify heappushpop heapreplace nlargest nsmallest merge",
    "bisect": "bisect bisect_left bisect_right insort insort_left insort_right",
    "itertools": "accumulate chain combinations combinations_with_replacement compress count cycle dropwhile filterfalse "
    "groupby islice pairwise permutations product repeat starmap takewhile tee zip_longest",
    "functools": "lru_cache cache reduce partial cmp_to_key wraps total_ordering cached_property",
    "math": "acos acosh asin asinh atan atan2 atanh ceil comb copysign cos cosh degrees dist e exp fabs factorial floor fmod "
    "frexp gcd hypot inf isclose isfinite isinf isnan isqrt lcm log log10 log1p log2 nan perm pi prod radians sin sinh sqrt "
    "tan tanh tau trunc",
    "copy": "copy deepcopy",
    "string": "ascii_letters ascii_lowercase ascii_uppercase digits hexdigits punctuation whitespace",
    "operator": "itemgetter attrgetter methodcaller add sub mul floordiv truediv mod xor and_ or_ neg",
    "random": "randint randrange choice choices sample shuffle uniform",
    "re": "findall finditer fullmatch match search split",
    "io": "StringIO BytesIO",
    "sys": "stdin stdout stderr maxsize setrecursionlimit",
    "datetime": "timedelta date",
    "decimal": "Decimal getcontext",
    "fractions": "Fraction",
    "statistics": "mean median mode stdev",
    "json": "loads dumps",
}
_OWNER = {name: module for module, names in _MEMBERS.items() for name in names.split()}
_BUILTIN = frozenset(dir(builtins)) | {"__name__", "__file__", "__doc__"}


def unbound(tree: ast.AST) -> frozenset[str]:
    """Names that are read somewhere and bound nowhere in a program (scopes are not told apart), without builtins."""
    read: set[str] = set()
    bound: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (read if isinstance(node.ctx, ast.Load) else bound).add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            bound.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            bound.add(node.rest)
    return frozenset(read - bound - _BUILTIN)


def supply(tree: ast.AST, given: frozenset[str] = frozenset()) -> tuple[str, frozenset[str]]:
    """Import lines for the unbound names that the preamble knows, and the names that it does not know.

    `given` names come from elsewhere and are left out: an entry point may be called `gcd`, as a library's function is.
    """
    missing = unbound(tree) - given
    dotted = {
        node.value.id for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    lines = []
    unknown = set()
    for name in sorted(missing):
        if name in _MODULES and (name in dotted or name not in _OWNER):
            lines.append(f"import {name}")
        elif name in _OWNER:
            lines.append(f"from {_OWNER[name]} import {name}")
        else:
            unknown.add(name)
    return "\n".join(lines) + "\n", frozenset(unknown)
