"""JSON documents out of files: one, a line each, a list, also compressed; a bad one costs itself."""

import gzip
import json
from pathlib import Path
from random import Random

import pytest

from orchard.pipelines.interchange import documents as module
from orchard.pipelines.interchange.documents import documents

ONE = {"a": 'x"]}\\', "b": [{"c": "é\n"}, "["]}


@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("form", ["one", "indented", "lines", "list", "indented list"])
def test_a_file_is_split_into_its_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int, packed: bool, form: str
) -> None:
    monkeypatch.setattr(module, "_CHUNK", chunk)
    three = [ONE | {"n": number} for number in range(3)]
    text, expected = {
        "one": (json.dumps(ONE), [ONE]),
        "indented": (json.dumps(ONE, indent=1), [ONE]),
        "lines": ("\n".join(map(json.dumps, three)), three),
        "list": (json.dumps(three), three),
        "indented list": ("\n " + json.dumps(three, indent=2) + "\n", three),
    }[form]
    file = tmp_path / ("a.json.gz" if packed else "a.json")
    file.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    found = list(documents(file))
    assert [json.loads(each.raw) for each in found] == expected
    assert len({each.name for each in found}) == len(found)


def test_a_bad_line_or_item_is_a_document_of_its_own(tmp_path: Path) -> None:
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"a": \n\n{"a": 1}\n')
    assert [(each.name.rpartition(", ")[2], each.raw.strip()) for each in documents(lines)] == [
        ("line 1", b'{"a":'),
        ("line 3", b'{"a": 1}'),
    ]
    items = tmp_path / "a.json"
    items.write_text('[{"a": 1}, 5, {"a": x}, {"b": 2}, {"cut": ')
    assert [each.raw for each in documents(items)] == [
        b'{"a": 1}',
        b"5",
        b'{"a": x}',
        b'{"b": 2}',
        b'{"cut":',
    ]


def test_a_generated_list_is_split_at_every_place_of_a_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(4)
    texts = ["", "\\", '"', '\\"', "]", "{", "é", "a" * 50]
    monkeypatch.setattr(module, "_CHUNK", 13)
    for _ in range(200):
        items = [{random.choice(texts): [random.choice(texts)]} for _ in range(random.randint(0, 8))]
        file = tmp_path / "a.json"
        file.write_text(json.dumps(items, ensure_ascii=random.random() < 0.5))
        assert [json.loads(each.raw) for each in documents(file)] == items
