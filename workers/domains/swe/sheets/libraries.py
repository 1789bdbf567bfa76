"""Which names of libraries stand for the same value on every day and in every sandbox. Pure.

Whatever else a test reads may be what tested code left there (a file, a variable of the environment, the
output of a command), or changes by itself (the time, the name of the host, a random number)."""

import re

_COMPUTING = frozenset(
    [
        *("array", "ast", "base64", "binascii", "bisect", "calendar", "cmath", "collections", "copy"),
        *("dataclasses", "datetime", "dateutil", "decimal", "difflib", "enum", "fractions", "functools"),
        *("hashlib", "heapq", "html", "ipaddress", "itertools", "json", "math", "numbers", "numpy"),
        *("operator", "packaging", "pandas", "pathlib", "pytest", "pytz", "re", "regex", "shlex"),
        *("statistics", "string", "struct", "textwrap", "types", "typing", "typing_extensions"),
        *("unicodedata", "unittest", "urllib", "uuid", "zlib", "zoneinfo"),
    ]
)
"""Top-level modules whose functions compute a value of their arguments alone, but for those below."""
_WORLD = frozenset(
    [
        *("asyncio", "concurrent", "ctypes", "fcntl", "fileinput", "getpass", "gc", "glob", "http", "io"),
        *("locale", "logging", "multiprocessing", "os", "platform", "random", "resource", "secrets"),
        *("select", "shutil", "signal", "site", "socket", "sqlite3", "ssl", "subprocess", "sys"),
        *("sysconfig", "tempfile", "threading", "time", "tracemalloc", "urllib3", "warnings", "weakref"),
    ]
)
"""Top-level modules of which even an object's making depends on what is around it."""
_READING = re.compile(
    r"(read|load|fetch|recv|get_|list_?dir|scan|stat$|lstat|is_(file|dir|symlink|mount)|exists|samefile)"
    r"|^(now|today|utcnow|fromtimestamp|localtime|astimezone|resolve|absolute|expanduser|cwd|home|owner|group"
    r"|glob|rglob|iterdir|walk|open|urlopen|fromfile|genfromtxt|memmap|random|default_rng|getcontext"
    r"|localcontext|uuid1|uuid4|geterr|getenv|tell|communicate|getvalue|wait|poll|result)$"
)
_CHANGING = frozenset(
    [
        *("now", "today", "utcnow", "fromtimestamp", "time", "time_ns", "monotonic", "perf_counter", "ctime"),
        *("localtime", "gmtime", "strftime", "gethostname", "getfqdn", "getpid", "getuser", "node", "uuid1"),
        *("uuid4", "cpu_count", "gettempdir", "mkdtemp", "mkstemp", "token_hex", "token_bytes", "urandom"),
        *("random", "randint", "choice", "getrandbits"),
    ]
)
"""Names of what differs from day to day and from sandbox to sandbox."""
_PURE = frozenset(
    [
        *("json.loads", "os.path.join", "os.path.basename", "os.path.dirname", "os.path.normpath"),
        *("os.path.splitext", "os.sep", "os.linesep", "os.pathsep", "sys.maxsize", "sys.version_info"),
    ]
)


def is_computing(name: str) -> bool:
    """Whether a call of this function or class, dotted, gives a value of its arguments alone."""
    root, *parts = name.split(".")
    if name in _PURE:
        return True
    if root in _WORLD or any(map(reads_the_world, parts)):
        return False
    return root in _COMPUTING or (parts != [] and parts[-1][:1].isupper())


def is_lasting(name: str) -> bool:
    """Whether what this name of a library stands for, dotted, is the same wherever it is read: a class, a
    function, a constant."""
    root, *parts = name.split(".")
    if name in _PURE:
        return True
    if root in _COMPUTING:
        return not any(map(reads_the_world, parts))
    return not parts or parts[-1][:1].isupper()


def changes(name: str) -> bool:
    """Whether what this function of a library, dotted, gives is another value in the next sandbox."""
    return name.rpartition(".")[2] in _CHANGING


def reads_the_world(name: str) -> bool:
    """Whether a function or method of this name reads what may change."""
    return _READING.match(name) is not None
