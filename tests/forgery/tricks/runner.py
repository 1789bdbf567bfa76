"""Files that the runner or the interpreter reads: configuration, conftest, plug-ins, start-up, shadows."""

import importlib.util
import marshal

from tests.forgery.payloads import FORCED, PLUGIN, REPORT
from tests.forgery.trick import Link, Trick

ADDOPTS = "addopts = -p forge\n"
EXIT = REPORT + "\n\nimport os, sys\n_say(_report())\nos._exit(0)\n"
"""A module that prints what a good run prints, and ends the process well."""

REAL = """
def _real():
    import importlib, os, sys

    name, path, me = __name__.split(".")[0], list(sys.path), sys.modules.pop(__name__)
    file = os.path.dirname(__file__) if "__path__" in globals() else __file__
    here = os.path.realpath(os.path.dirname(file))
    sys.path[:] = [each for each in path if os.path.realpath(each or ".") != here]
    importlib.invalidate_caches()
    try:
        real = importlib.import_module(name)
    finally:
        sys.path[:] = path
    globals().update({key: value for key, value in vars(real).items() if key != "__name__"})
    sys.modules[__name__] = real


_real()
"""
"""A shadow's first act: put the module that it hides in its place."""
SHADOW = REAL + FORCED


def bytecode(source: str) -> bytes:
    """A `.pyc` that the interpreter never compares with its source."""
    code = marshal.dumps(compile(source, "forge", "exec"))
    return importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + code


def metadata(folder: str) -> dict[str, str]:
    """An installed distribution with a pytest plug-in."""
    name = "METADATA" if folder.endswith(".dist-info") else "PKG-INFO"
    return {
        f"{folder}/{name}": "Metadata-Version: 2.1\nName: forge\nVersion: 1\n",
        f"{folder}/entry_points.txt": "[pytest11]\nforge = forge\n",
        "@PATH@forge.py": FORCED,
    }


def _configured(name: str, section: str, options: str = ADDOPTS) -> Trick:
    files = {name: f"[{section}]\n{options}", "forge.py": FORCED}
    return Trick(name=f"{name} loads a plug-in", family="configuration", files=files)


RUNNER = (
    _configured("tox.ini", "pytest"),
    _configured("setup.cfg", "tool:pytest"),
    _configured("pyproject.toml", "tool.pytest.ini_options", 'addopts = "-p forge"\n'),
    _configured("pytest.ini", "pytest", ADDOPTS + "pythonpath = .\n"),
    _configured(".pytest.ini", "pytest"),
    _configured("pytest.toml", "pytest", 'addopts = ["-p", "forge"]\n'),
    _configured(".pytest.toml", "pytest", 'addopts = ["-p", "forge"]\n'),
    _configured("tests/pytest.ini", "pytest", ADDOPTS + "pythonpath = ..\n"),
    Trick(
        name="filterwarnings imports its category",
        family="configuration",
        files={
            "tox.ini": "[pytest]\nfilterwarnings = ignore::forge.Category\n",
            "pytest.ini": "[pytest]\npythonpath = .\nfilterwarnings = ignore::forge.Category\n",
            "forge.py": FORCED + "\n\nclass Category(Warning):\n    pass\n",
        },
    ),
    Trick(
        name="pythonpath puts shadows first",
        family="configuration",
        files={
            "tox.ini": "[pytest]\npythonpath = shadows .\n",
            "pytest.ini": "[pytest]\npythonpath = shadows .\n",
            "shadows/@IMPORT@.py": "",
            "shadows/difflib.py": SHADOW,
            "shadows/pprint.py": SHADOW,
        },
    ),
    Trick(
        name="python_functions leaves out all tests but easy ones",
        family="configuration",
        files={
            "pytest.ini": "[pytest]\npythonpath = .\npython_functions = easy_*\n",
            "tests/easy_test.py": "def easy_one():\n    pass\n",
        },
    ),
    Trick(name="conftest.py beside the tests", family="conftest", files={"tests/conftest.py": PLUGIN}),
    Trick(name="conftest.py at the top", family="conftest", files={"conftest.py": PLUGIN}),
    Trick(
        name="conftest.py is a link",
        family="conftest",
        files={
            "notes.txt": PLUGIN,
            "conftest.py": Link("notes.txt"),
            "tests/conftest.py": Link("../notes.txt"),
        },
    ),
    Trick(
        name="tests/__init__.py runs first",
        family="conftest",
        files={"tests/__init__.py": FORCED},
    ),
    Trick(
        name="a package of the test module's name",
        family="conftest",
        files={
            "@TESTNAME@/__init__.py": FORCED
            + "\npath = __path__[0] + '.py'\nexec(compile(open(path).read(), path, 'exec'))\n"
        },
    ),
    Trick(
        name="bytecode of the tests that is never compared",
        family="conftest",
        files={
            f"tests/__pycache__/{name}.cpython-311{kind}.pyc": bytecode(FORCED + body)
            for name, body in (
                ("test_pricing", "def test_reported(): pass\ntest_others = test_unchanged = test_reported\n"),
                (
                    "test_accounts",
                    "import unittest\nclass BalanceTest(unittest.TestCase):\n"
                    "    def test_reported(self): pass\n    test_others = test_untouched = test_reported\n",
                ),
            )
            for kind in ("", "-pytest-9.2.0")
        },
    ),
    Trick(
        name="bytecode of the tests' package",
        family="conftest",
        files={"tests/__pycache__/__init__.cpython-311.pyc": bytecode(FORCED)},
    ),
    Trick(name="entry point in .dist-info", family="entry points", files=metadata("@PATH@forge-1.dist-info")),
    Trick(name="entry point in .egg-info", family="entry points", files=metadata("@PATH@forge.egg-info")),
    Trick(
        name="entry point at the top of the repository",
        family="entry points",
        files={**metadata("forge-1.dist-info"), "forge.py": FORCED},
    ),
    Trick(
        name="entry point in a zip beside an .egg-link",
        family="entry points",
        files={
            "forge.egg-link": ".\n.\n",
            "forge.pth": "import forge\n",
            "forge.py": FORCED,
            "@PATH@zz.pth": "import forge\n",
        },
    ),
    *(
        Trick(
            name=f"{name} on the path",
            family="start-up",
            files={f"@PATH@{name}": FORCED, name: FORCED},
        )
        for name in ("sitecustomize.py", "usercustomize.py")
    ),
    Trick(
        name="sitecustomize as a package",
        family="start-up",
        files={"@PATH@sitecustomize/__init__.py": FORCED, "sitecustomize/__init__.py": FORCED},
    ),
    Trick(
        name="sitecustomize as bytecode",
        family="start-up",
        files={"@PATH@sitecustomize.pyc": bytecode(FORCED), "sitecustomize.pyc": bytecode(FORCED)},
    ),
    Trick(
        name="encodings beside the code",
        family="start-up",
        files={"@PATH@encodings/__init__.py": SHADOW, "encodings/__init__.py": SHADOW},
    ),
    *(
        Trick(name=f"{path} hides the real one", family="shadow", files={path: text})
        for path, text in (
            ("pytest.py", EXIT),
            ("pytest/__main__.py", EXIT),
            ("_pytest/__init__.py", EXIT),
            ("pluggy.py", SHADOW),
            ("iniconfig.py", SHADOW),
            ("argparse.py", SHADOW),
            ("difflib.py", SHADOW),
            ("traceback.py", SHADOW),
            ("unittest/__main__.py", EXIT),
            ("unittest.py", EXIT),
            ("signal.py", SHADOW),
        )
    ),
    Trick(
        name="pytest.pyc and unittest.pyc hide the real ones",
        family="shadow",
        files={"pytest.pyc": bytecode(EXIT), "unittest.pyc": bytecode(EXIT)},
    ),
    Trick(
        name="several modules hide the standard library's",
        family="shadow",
        files={f"@PATH@{name}.py": SHADOW for name in ("argparse", "difflib", "gettext", "pprint", "signal")},
    ),
    Trick(
        name="a module beside the tests hides the tested one",
        family="shadow",
        files={"tests/@IMPORT@.py": FORCED + "\n\ndef @FUNCTION@(*arguments):\n    pass\n"},
    ),
)
