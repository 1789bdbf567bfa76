"""Doctests: of texts they are questions, of tested code they belong to the submission."""

import doctest

import msgspec
import pytest
from _pytest.doctest import _get_checker

from orchard.schemas.protection import Protected
from orchard.workers.domains.swe.commands import Framework, named
from orchard.workers.domains.swe.sheets.doctests import only_examples, rewrite_text
from orchard.workers.domains.swe.sheets.imported import imported_files
from orchard.workers.domains.swe.sheets.labels import SheetWords, label_of
from orchard.workers.domains.swe.sheets.printed import printed, printed_error
from orchard.workers.domains.swe.sheets.rewriting import rewrite
from orchard.workers.domains.swe.sheets.store import SheetStore
from orchard.workers.graders import grade

DOCUMENTED = '''    """A name without blanks.

    >>> label(" tea ")
    'tea'
    """
    return'''


@pytest.mark.long
async def test_tests_in_what_is_repaired_belong_to_the_submission(shop, task, machine, pristine, blobs):
    """Once the sheet brought the known solution's own module, and who submitted nothing was paid."""
    module, text = "shop/sums.py", "README.rst"
    gold = shop.FIXED.replace("    return name", DOCUMENTED + " name")
    gold += "\n\ndef test_label():\n    assert label(' tea ') == 'tea'\n"
    own = f"{module}::shop.sums.label", f"{module}::test_label", f"{text}::{text}"
    grading = msgspec.structs.replace(
        task.grading,
        test_command=f"{task.grading.test_command} --doctest-modules {module} {text}",
        fail_to_pass=(*task.grading.fail_to_pass, *own),
    )
    shop.write({text: ""})
    shop.git("add", "-A")
    shop.git("commit", "-qm", "documented")
    words = "A shop.\n\n>>> from shop.sums import label\n>>> label(' tea ')\n'tea'\n"
    task = msgspec.structs.replace(
        task,
        base_commit=shop.git("rev-parse", "HEAD").strip(),
        gold_patch=shop.diff({module: gold, text: words}),
        grading=grading,
    )

    async def judged(files):
        return await grade(task, shop.diff(files), machine, timeout=120.0, blobs=blobs, pristine=pristine)

    assert not (await judged({"notes.txt": "nothing\n"})).resolved
    assert (await judged({module: gold, text: words})).resolved
    other = gold.replace("tea", "coffee")
    assert (await judged({module: other, text: words.replace("tea", "milk")})).resolved
    sheet = SheetStore(blobs).get(task)
    assert not {module, text} & set(sheet.paths)
    labels = {test.name: test.label for test in sheet.tests.values()}
    assert {labels[each] for each in own} == {Protected.INSIDE}


@pytest.mark.parametrize(
    ("test", "kind"),
    [
        ("README.rst::README.rst", "text"),
        ("docs/a b.md::a b.md", "text"),
        ("README.rst::line:12", None),
        ("tests/data.yaml::case", None),
        ("shop/sums.py::shop.sums.label", "docstring"),
        ("src/shop/__init__.py::shop", "docstring"),
        ("sums.py::sums", "docstring"),
        ("tests/test_sums.py::test_sums", "test"),
        ("tests/test_sums.py::TestIt::test_sums[a.b]", "test"),
        ("tests/test_sums.py::tests.test_sums.helper", "docstring"),
    ],
)
def test_what_an_id_names(test, kind):
    name = named(test, Framework.PYTEST, ())
    if name is None:
        assert kind is None
    elif name.is_of_docstring:
        assert kind == "docstring"
    else:
        assert kind == ("test" if name.file.endswith(".py") else "text")


TEXT = """Words that say 4711.

    >>> f(3)  # doctest: +SOME_PLUGIN
    4711
    >>> for each in range(2):
    ...     g(each)
    >>> f(4)
    Traceback (most recent call last):
        ...
    ValueError: 815 is wrong
"""


def test_what_examples_print_leaves_the_text():
    made = rewrite_text(TEXT, "a.rst", first=7, treatments={}, bits=())
    assert made.sheet == made.key.replace(' "4711\\n"', "").replace(' ""', "").replace(
        ' "ValueError: 815 is wrong\\n"', ""
    )
    assert {number: site.line for number, site in made.sites.items()} == {7: 3, 8: 5, 9: 7}
    examples = doctest.DocTestParser().get_examples(only_examples(made.sheet).replace("doctest:", ""))
    assert [each.want for each in examples[:2]] == ["__ask__ 7\n", "__ask__ 8\n"]
    assert examples[2].exc_msg == "__ask__ 9\n"
    assert "4711" not in only_examples(made.sheet) and "815" not in made.sheet
    left = rewrite_text(TEXT, "a.rst", first=7, treatments={}, bits=(7, 9))
    assert list(left.sites) == [8] and "815 is wrong" in left.sheet


def test_a_docstring_that_doctest_does_not_read_stays():
    source = 'def f():\n    """\n    >>> f()\n  3\n    """\n    assert f() == 4\n'
    assert "3" in rewrite(source, lambda _: False).key


def test_texts_that_tests_run_are_found():
    source = 'import doctest\ndoctest.testfile("../docs/guide.rst")\nprint("notes.txt", "none.txt")\n'
    files = {"docs/guide.rst", "notes.txt", "README.rst"}
    assert imported_files("tests/test_a.py", source, files) == {"docs/guide.rst", "notes.txt"}
    assert imported_files("tests/test_a.py", source.replace("doctest", "other"), files) == set()


OUTPUTS = [
    *(
        "",
        "\n",
        "1\n",
        "True\n",
        "9\n",
        "[1, 2]\n",
        "[1,  2]\n",
        "a\n\nb\n",
        "a\n<BLANKLINE>\nb\n",
        "a ... b\n",
    ),
    *("a big b\n", "...\n", "u'x'\n", "'x'\n", "b'x'\n", "3.14\n", "3.1415\n", "3.2\n", "1e3\n", "1000.0\n"),
    *("3.\n", ".5\n", "0.5\n", "inf\n", "1.5 and 2.25\n", "1.5 and 2.2\n", "-1.5e-3\n", "-0.0015\n"),
]
OPTIONS = [
    "",
    *("NORMALIZE_WHITESPACE ELLIPSIS", "ALLOW_UNICODE", "ALLOW_BYTES", "NUMBER", "NUMBER ELLIPSIS"),
]
OPTIONS += ["DONT_ACCEPT_TRUE_FOR_1", "DONT_ACCEPT_BLANKLINE"]


@pytest.mark.parametrize("options", OPTIONS)
def test_outputs_are_judged_as_pytest_does(options):
    checker = _get_checker()
    flags = options.split()
    value = sum(doctest.register_optionflag(each) for each in flags)
    for want in OUTPUTS:
        for got in OUTPUTS:
            assert printed(got, want, flags) == checker.check_output(want, got, value), (want, got)


def test_exceptions_are_judged_by_their_class_where_an_example_says_so():
    want = "shop.errors.Refused: six\n"
    assert printed_error(want, want, [])
    assert not printed_error("shop.errors.Refused: five\n", want, ["ELLIPSIS"])
    assert printed_error("Refused: five\n", want, ["IGNORE_EXCEPTION_DETAIL"])
    assert not printed_error("Denied: six\n", want, ["IGNORE_EXCEPTION_DETAIL"])


@pytest.mark.parametrize(
    ("kind", "want", "flags", "label"),
    [
        ("printed", "4711\n", [], "value"),
        ("printed", "{'a': [815]}\n", [], "value"),
        ("printed", "the tea is ready\n", [], "value"),
        ("printed", "815 and 4711\n", ["ELLIPSIS"], "value"),
        ("printed", "815 ... 4711\n", ["ELLIPSIS"], "echo"),
        ("printed", "7\n", [], "echo"),
        ("printed", "", [], "bit"),
        ("printed", "True\n", [], "bit"),
        ("printed", "...\n", ["ELLIPSIS"], "bit"),
        ("printed_error", "Refused: all of it\n", [], "value"),
        ("printed_error", "Refused: all of it\n", ["IGNORE_EXCEPTION_DETAIL"], "echo"),
        ("printed_error", "ValueError: all of it\n", ["IGNORE_EXCEPTION_DETAIL"], "bit"),
        ("printed_error", "Refused\n", [], "echo"),
    ],
)
def test_labels_of_examples(kind, want, flags, label):
    condition = [kind, ["leaf", 0], ["pure", 0], ["pure", 1]]
    words = SheetWords(["x = 7"])
    assert label_of(condition, [want, {"list": flags}], words) == label


def test_numbers_in_a_long_output_are_found_at_once():
    assert not printed("1" * 65_000, "1.5\n", ["NUMBER"])
