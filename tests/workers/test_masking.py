"""Keys of known vendors do not get into the log; nothing that only looks a little like one is touched."""

import base64
import hashlib
import random
import string
from pathlib import Path

import msgspec
import pytest

from orchard.schemas.messages import MessageNode, ToolCall
from orchard.storage.blobs import BlobStore
from orchard.workers.episode.machine import CommandOutcome
from orchard.workers.episode.message_tree import MessageTree
from orchard.workers.masking import masked

LETTERS, HEX, BASE32 = (
    string.ascii_letters + string.digits,
    "0123456789abcdef",
    string.ascii_uppercase + "234567",
)
_random = random.Random(7)


def some(length: int, letters: str = LETTERS) -> str:
    """Made here: a key written down would be found by whoever looks for keys in repositories."""
    return "".join(_random.choice(letters) for _ in range(length))


KEYS = {
    "aws-access-key": "AK" + "IA" + some(16, BASE32),
    "github-token": "gh" + "p_" + some(36),
    "github-fine-grained": "github" + "_pat_" + some(22) + "_" + some(59),
    "gitlab-token": "gl" + "pat-" + some(20),
    "anthropic-key": "sk-" + "ant-api03-" + some(93) + "AA",
    "openai-project": "sk-" + "proj-" + some(74) + "T3BlbkFJ" + some(74),
    "openai-old": "sk-" + some(20) + "T3BlbkFJ" + some(20),
    "openrouter-key": "sk-" + "or-v1-" + some(64, HEX),
    "google-key": "AI" + "za" + some(35),
    "google-key of 2026": "A" + "Q." + some(43),
    "slack-cookie": "xo" + "xd-" + some(40),
    "hugging-face-token": "h" + "f_" + some(34, string.ascii_letters),
    "groq-key": "gs" + "k_" + some(52),
    "slack-token": "xo" + "xb-" + some(12, string.digits) + "-" + some(24),
    "slack-webhook": "https://hooks.slack" + ".com/services/T" + some(9) + "/B" + some(9) + "/" + some(24),
    "stripe-key": "sk" + "_live_" + some(24),
    "npm-token": "np" + "m_" + some(36),
    "pypi-token": "py" + "pi-AgEIcHlwaS5vcmc" + some(90),
    "docker-token": "dck" + "r_pat_" + some(27),
    "digitalocean-token": "do" + "p_v1_" + some(64, HEX),
    "databricks-token": "da" + "pi" + some(32, HEX),
    "sendgrid-key": "S" + "G." + some(22) + "." + some(43),
    "nats-seed": "S" + "UA" + some(55, BASE32),
}
FRAMES = (
    "{}",
    "export KEY={}\n",
    '{{"key":"{}"}}',
    "Authorization: Bearer {}",
    "a {}, b",
    "<{}>",
    "url?k={}&x=1",
    "first line\\n{}\\nlast line",
    "\x1b[01;31m\x1b[K{}\x1b[m\x1b[K",
    "\\u001b[1;31m{}\\u001b[0m",
    "\\x00{}\\x00",
    "?next=a%3D{}%26b",
)


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("frame", FRAMES)
def test_a_key_is_masked_wherever_it_stands(kind: str, frame: str) -> None:
    key = KEYS[kind]
    text, count = masked(frame.format(key))
    before, after = frame.format("\0").split("\0")
    assert count == 1 and key[10:] not in text
    assert text.startswith(f"{before}[masked ") and text.endswith(f"]{after}")
    assert masked(text) == (text, 0)


def test_a_secret_with_a_name_and_a_private_key_keep_their_frames() -> None:
    secret = some(40)
    for line in ("aws_secret_access_key = {}", '"SecretAccessKey": "{}"', "AWS_SECRET_ACCESS_KEY={}"):
        text, count = masked(line.format(secret))
        assert count == 1 and secret not in text and text.startswith(line.partition("{")[0])
    body = "\n".join(some(64) for _ in range(5))
    for joined in ("\n", "\\n"):
        begin, end = "-----BEGIN " + "RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----"
        text, count = masked(f"a{begin}{joined}{body.replace(chr(10), joined)}{joined}{end}b")
        assert (
            count == 1 and body[:20] not in text and text.startswith(f"a{begin}") and text.endswith(f"{end}b")
        )


def test_equal_keys_stay_equal_and_others_do_not() -> None:
    one, two = "gh" + "p_" + some(36), "gh" + "p_" + some(36)
    text, count = masked(f"{one} {two} {one}")
    first, second, third = text.replace("[masked github-token ", "").replace("]", "").split()
    assert (count, first == third, first == second) == (3, True, False)


@pytest.mark.parametrize(
    "text",
    [
        hashlib.sha1(b"commit").hexdigest(),
        hashlib.sha256(b"digest").hexdigest(),
        "sha512-" + base64.b64encode(hashlib.sha512(b"package-lock").digest()).decode(),
        "AKIA" + "IOSFODNN7EXAMPLE",
        "sk-learn is scikit-learn; sk-proj-name; risk-proj-" + "a" * 50,
        "hf_hub_download(repo_id), hf_" + "x" * 20,
        "ghp_short npm_config_registry npm_package_json xoxb- AIza",
        "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
        "-----BEGIN " + "PRIVATE KEY-----",
        "secret_access_key = os.environ['AWS_SECRET_ACCESS_KEY']",
        "desk_live_" + "a" * 30,
        base64.b64encode(random.Random(3).randbytes(20_000)).decode(),
        random.Random(4).randbytes(20_000).hex(),
    ],
)
def test_what_is_no_key_is_left_alone(text: str) -> None:
    assert masked(text) == (text, 0)


@pytest.mark.long
def test_no_source_of_the_standard_library_has_one() -> None:
    """Five megabytes of ordinary code: the cost of a mask that is wrong."""
    sources = sorted(Path(string.__file__).parent.glob("*.py"))
    assert len(sources) > 100
    assert sum(masked(path.read_text(errors="replace")).keys for path in sources) == 0


async def test_a_trace_stores_and_shows_the_mask(tmp_path: Path) -> None:
    """What is stored, what the model is shown next and the hash of the output that a replay compares."""
    published: list[msgspec.Struct] = []

    async def publish(data: msgspec.Struct) -> None:
        published.append(data)

    trace = MessageTree(publish, BlobStore(tmp_path))
    key, large = KEYS["anthropic-key"], "x" * 300_000
    root = await trace.system("be good")
    call = ToolCall(id="1", name="bash", arguments='{"command":"cat .env"}')
    outcome = CommandOutcome(output=key, returncode=0, seconds=0.1)
    node = await trace.result(root, call, f"KEY={key}", outcome)
    await trace.result(node, call, f"{large}{chr(10)}{key}", outcome)
    assert trace.keys_masked == 2
    everything = [msgspec.json.encode(data) for data in published]
    everything += [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not [data for data in everything if key[8:40].encode() in data]
    assert isinstance(published[1], MessageNode) and "[masked anthropic-key" in published[1].content
    assert trace.messages(node)[-1]["content"] == published[1].content
