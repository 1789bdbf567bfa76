"""`orchard dataset ...` on a store, as a user types it."""

import asyncio
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from orchard.cli.app import app
from orchard.pipelines.datasets.errors import DatasetError
from orchard.pipelines.datasets.manifest import read_manifest
from orchard.pipelines.datasets.settings import read_settings
from tests.orchard.test_facts import check, jq

TOML = """
name = "mine"
tokenizer = "{tokenizer}"
[values]
annotator = "teacher"
"""


def orchard(store: str, *words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["--store", store, "dataset", *words])
    if code == 0 and done.exception is not None:
        raise done.exception
    assert done.exit_code == code
    return done.output if isinstance(done.exception, SystemExit) else f"{done.output}{done.exception or ''}"


@pytest.mark.long
async def test_from_a_log_to_a_dataset_with_its_card_and_its_reasons(
    keep, author, tokenizer: str, tmp_path: Path
) -> None:
    failed = author.rollout(1, ["ls", "cat a", "submit"], resolved=False)
    events = [*author.rollout(0, ["ls", "submit"], resolved=True), *failed]
    store = await keep([*events, author.annotated(failed, {0: 0.4, 1: 0.7, 2: 0.1}, 3)])
    (tmp_path / "mine.toml").write_text(TOML.format(tokenizer=tokenizer))
    out = str(tmp_path / "out")

    async def run(*words: str, code: int = 0) -> str:
        return await asyncio.to_thread(orchard, store, *words, code=code)

    built = await run("build", str(tmp_path / "mine.toml"), "--out", out, "--processes", "1")
    assert "no stream here" in built  # it was written from the server of the test
    manifest = read_manifest(Path(out))
    assert manifest.sha256 in built and manifest.rows == 2
    assert built.endswith(await run("show", out))
    assert "rollout.finished" in await run("why", out, "1")
    row = await run("why", out, "1", "--json")
    check("dataset why", row)
    assert jq('.resolved, ([.events[] | select(.type == "rollout.finished")] | length)', row) == "false\n1\n"
    assert "equal rows" in await run("diff", out, out)
    facts = await run("diff", out, out, "--json")
    check("dataset diff", facts)
    assert jq(".equal", facts) == "true\n"
    assert "written" in await run("card", out)
    card = (Path(out) / "README.md").read_text()
    assert manifest.sha256 in card and "| unresolved | 1 |" in card
    assert all((Path(out) / name).stat().st_size for name in ("card-tokens.png", "card-segments.png"))
    exported = await run("export", out, "--format", "messages", "--out", str(tmp_path / "export"))
    assert "not expressed (1 rows): turns that do not train" in " ".join(exported.split())
    made = await run("tokenizer", "--out", str(tmp_path / "tokenizer"), "--vocab-size", "300")
    assert "300 tokens" in made


def test_an_import_says_which_rows_it_left_out_and_fails_where_it_left_out_all(tmp_path: Path) -> None:
    metadata = json.dumps({"instance_id": "a__1", "verify_status": "resolved"})
    messages = [{"role": "user", "content": "Repair it."}, {"role": "assistant", "content": "Done."}]
    good = {"messages": messages, "tools": "[]", "metadata": metadata}
    bad = good | {"messages": messages[:1]}
    for name, rows in {"some": [bad, good, bad], "none": [bad]}.items():
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
    import_ = ("import", "--campaign", "theirs")
    some = str(tmp_path / "some.parquet")
    told = orchard(str(tmp_path / "store"), *import_, some, "--strict", code=1)
    assert "2 of 3 items of orchard-swe cannot be imported" in told
    told = orchard(str(tmp_path / "store"), *import_, some, code=3)
    assert told.splitlines()[-1] == "imported 1 rollouts into theirs, 2 left out"
    for row in (0, 2):
        assert f"row {row}: messages: no message of the assistant" in told
    assert f"events wait in {tmp_path / 'store' / 'nats'}" in told and "start `orchard up`" in told
    again = orchard(str(tmp_path / "store"), *import_, some, code=3)
    assert "imported 0 rollouts into theirs, 1 were there already, 2 left out" in again
    told = orchard(str(tmp_path / "store"), *import_, str(tmp_path / "none.parquet"), code=1)
    assert "has no item to import" in told and "row 0: messages: no message of the assistant" in told
    gui = {"messages": messages[:1], "images": None, "reward": 1.0, "status": "", "metadata": metadata}
    pq.write_table(pa.Table.from_pylist([gui]), tmp_path / "gui.parquet")
    import_ = (*import_, "--format", "orchard-gui")
    told = orchard(str(tmp_path / "store"), *import_, str(tmp_path / "gui.parquet"), code=1)
    assert "row 0: messages: no message of the assistant" in told


def test_a_configuration_that_cannot_be_used_is_refused_in_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    for text, words in (
        ('name = "x"', "tokenizer"),
        ('name = "x"\ntokenizer = "t"\nunknown = 1', "unknown"),
        ('name = "x"\ntokenizer = "t"\n[selection]\nstrategy = "best"', "best"),
        ('name = "X Y"\ntokenizer = "t"', "not valid"),
        ("name = ", "not valid TOML"),
    ):
        file.write_text(text)
        with pytest.raises(DatasetError, match=words):
            read_settings(file)
    with pytest.raises(DatasetError, match="does not exist"):
        read_settings(tmp_path / "none.toml")
