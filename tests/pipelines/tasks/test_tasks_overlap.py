"""Nearly the same tasks are found whatever their names, and different tasks of one form are not."""

import random
import re

import pytest

from orchard.pipelines.tasks.overlap import TaskText, near, repo_name

WORDS = [f"{first}{second}" for first in "bdfglmnprt" for second in ("ak", "elo", "iru", "ost", "umen", "yv")]


def prose(seed: int, words: int = 120) -> str:
    dice = random.Random(seed)
    return " ".join(dice.choice(WORDS) for _ in range(words)).capitalize() + "."


def code(seed: int, lines: int = 12) -> list[str]:
    dice = random.Random(f"code {seed}")
    drawn = (dice.choices(WORDS, k=4) for _ in range(lines))
    return [f"    {a} = {b}.{c}({d}, {number})" for number, (a, b, c, d) in enumerate(drawn)]


def patch(added: list[str], path: str = "src/a.py", at: int = 10) -> str:
    hunk = [" def before():", *(f"+{line}" for line in added), " after = 1"]
    head = f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -{at},2 +{at},{len(hunk)} @@\n"
    return head + "\n".join(hunk) + "\n"


HELD = TaskText.of("held", "psf/requests", prose(1), patch(code(1)))
NOTES = "The repository in /testbed is to do what its next release does. Tests are brought when you are done."
CHINESE = "当嵌套层级超过限制时,解析器会崩溃。应当返回错误而不是崩溃,并且保留原始位置信息,以便用户定位问题。"


@pytest.mark.parametrize(
    ("path", "lines"),
    [
        ("a.h", ["#define MAX_{0} {0}", "#include <a{0}.h>"]),
        ("a.c", ["*out{0} = compute(context, {0});", "**rows{0} = 0;"]),
        ("a.rs", ["#[derive(Debug{0})]"]),
        ("a.css", ["#menu-{0} {{ color: red; }}"]),
        ("a.md", ["# Title {0}", "* point {0}"]),
    ],
)
def test_what_begins_as_a_comment_of_another_language_is_code(path: str, lines: list[str]) -> None:
    gold = patch([line.format(number) for number in range(8) for line in lines], path)
    held = TaskText.of("held", "a/jq", prose(1), gold)
    assert near([held], [TaskText.of("copy", "b/fork", prose(2), gold)], 0.5) == {
        "copy": ("held", 1.0, "patch")
    }


@pytest.mark.parametrize(
    ("path", "comments"),
    [
        ("a.py", ["# why"]),
        ("Makefile", ["# why"]),
        ("a.c", ["// why", "/* why", " * and how", " */", " **/"]),
        ("a.css", ["/* why */"]),
        ("a.sql", ["-- why"]),
    ],
)
def test_comments_are_not_compared(path: str, comments: list[str]) -> None:
    held, other = (
        TaskText.of("t", "o/r", "", patch([*more, *code(1)], path)).patch for more in ([], comments)
    )
    assert held == other


def test_a_statement_in_a_script_without_spaces_is_found_copied_and_reworded() -> None:
    held = TaskText.of("held", "a/x", CHINESE)
    reworded = CHINESE.replace("当嵌套", "如果嵌套").replace("保留", "保存")
    copies = [TaskText.of("copy", "b/y", CHINESE), TaskText.of("reworded", "b/y", reworded)]
    other = TaskText.of("other", "b/y", "安装脚本在没有网络的机器上不会结束,请在三次尝试之后停止并说明原因。")
    assert near([held], [*copies, other], 0.5).keys() == {"copy", "reworded"}


@pytest.mark.parametrize(
    ("repo", "statement", "gold"),
    [
        ("other/fork", prose(1), ""),
        ("other/fork", "Issue:\n\n> " + prose(1).upper().replace(" ", " \n> "), patch(code(2))),
        ("other/fork", "Please help. " + prose(1) + "\n\nThank you, and do not change tests.", ""),
        ("o/f", re.sub(r"(\w+ ){11}", lambda found: found[0] + "indeed ", prose(1)), patch(code(2))),
        (
            "o/f",
            prose(2),
            patch(["    # why", *(line.replace(" = ", "  =  ") for line in code(1))], "x.py", 70),
        ),
        ("o/f", prose(2), patch([*code(7, 80), *code(1), *code(8, 80)])),
    ],
    ids=[
        "same statement",
        "quoted in capitals",
        "framed",
        "reworded",
        "reformatted patch",
        "a release with it",
    ],
)
def test_a_copy_is_found(repo: str, statement: str, gold: str) -> None:
    other = TaskText.of("other", repo, statement, gold)
    assert near(
        [HELD], [TaskText.of("far", "psf/requests", prose(3), patch(code(3))), other], 0.5
    ).keys() == {"other"}


def test_what_many_repositories_say_is_no_likeness_but_a_text_copied_into_many_is() -> None:
    forms = [
        TaskText.of(
            f"t{number}", f"o/r{number}", f"{NOTES} {prose(50 + number, 30)}", patch(code(50 + number))
        )
        for number in range(20)
    ]
    assert near(forms[:10], forms[10:], 0.5) == {}
    copies = [
        TaskText.of(f"c{number}", f"o/r{number}", prose(1) + f" {number}.", patch(code(100 + number)))
        for number in range(9)
    ]
    assert near([HELD], [*forms, *copies], 0.5).keys() == {copy.task_id for copy in copies}


def test_a_line_that_anybody_may_write_is_a_copy_in_its_own_repository_alone() -> None:
    small = patch(["    return None"])
    held = TaskText.of("held", "psf/requests", "Mend it.", small)
    elsewhere = TaskText.of("elsewhere", "o/r", "Mend it.", small)
    same = TaskText.of("same", "Requests", prose(5), small)
    assert near([held], [elsewhere, same], 0.5) == {"same": ("held", 1.0, "patch")}
    assert repo_name("https://host/psf/Ruamel.Yaml.git") == repo_name("ruamel_yaml")
