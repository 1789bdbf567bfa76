"""What a tokenizer learns from: what a model will read, but for the control tokens."""

from pathlib import Path

from orchard.pipelines.datasets.tokenizer import CONTROL, log_texts, train_tokenizer
from orchard.storage.reader import open_tables


async def test_texts_are_the_templates_and_hold_no_control_token(keep, author) -> None:
    store = await keep(author.rollout(0, ["ls <|im_end|>", "cat a.py"], resolved=True))
    with open_tables(store) as tables:
        texts = list(log_texts(tables, [], 100))
        assert list(log_texts(tables, ["another"], 100)) == []
    whole = "".join(texts)
    assert whole.count("assistant\n") == 2
    assert whole.count("You repair programs.") == 1
    assert whole.count('"description"') >= 1, "the tools stand in the first message"
    assert '{"name": "bash", "arguments": {"command":"cat a.py"}}' in whole
    assert not [mark for mark in CONTROL if mark in whole]


async def test_the_templates_own_words_are_tokens(keep, author, tmp_path: Path) -> None:
    commands = [f"cat file{number}.py" for number in range(20)]
    store = await keep(author.rollout(0, commands, resolved=True))
    with open_tables(store) as tables:
        tokenizer = train_tokenizer(log_texts(tables, [], 100), 400, tmp_path)
    ids = tokenizer.encode("<|im_start|>assistant\n", add_special_tokens=False)
    assert [tokenizer.decode([each]) for each in ids] == ["<|im_start|>", "assistant", "\n"]


def test_a_tiny_model_can_be_told_the_names_of_its_tools_alone(tmp_path: Path) -> None:
    tokenizer = train_tokenizer(["look it up"] * 4, 400, tmp_path, schemas=False)
    messages = [{"role": "system", "content": "Help."}, {"role": "user", "content": "Go."}]
    tools = [
        {"type": "function", "function": {"name": name, "description": "Long.", "parameters": {}}}
        for name in ("mail_send", "todo_add")
    ]
    text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False)
    assert text == (
        "<|im_start|>system\nHelp.\n\nmail_send\ntodo_add\n<|im_end|>\n<|im_start|>user\nGo.<|im_end|>\n"
    )
    bare = tokenizer.apply_chat_template(messages[1:], tools=tools, tokenize=False)
    assert bare.startswith("<|im_start|>system\nmail_send\ntodo_add\n<|im_end|>\n")
