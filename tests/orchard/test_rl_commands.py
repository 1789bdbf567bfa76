"""What `orchard rl` and `orchard demo-rl` say to a user who is wrong."""

import pytest


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("demo-rl",), "demo-sft` first"),
        (("rl", "nowhere.toml"), "nowhere.toml does not exist"),
        (("rl", "run", "nowhere.toml"), "nowhere.toml does not exist"),
    ],
    ids=str,
)
def test_mistakes_are_one_sentence(command_line, tmp_path, words, says):
    done = command_line(*words, store=tmp_path / "store")
    assert done.returncode == 1
    assert says in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
