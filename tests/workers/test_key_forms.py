"""Forms of keys that are masked, in every frame they come in, and what only looks a little like one."""

import base64
import hashlib
import json
import random
import re
import string
import uuid
import zlib
from collections.abc import Iterator
from importlib import import_module

import pytest

from orchard.workers import masking
from orchard.workers.key_forms import PREFIXED, SHORTEST, Prefixed
from orchard.workers.masking import learn, masked

_LETTERS = string.ascii_letters + string.digits
_HEX, _URL, _UPPER = "0123456789abcdef", _LETTERS + "-_", string.ascii_uppercase + string.digits
_BASE32, _BASE64 = string.ascii_uppercase + "234567", _LETTERS + "+/"
_chance = random.Random(11)


def some(length: int, letters: str = _LETTERS) -> str:
    """With a digit, a small letter and a capital where `letters` have them. Made here, so that nobody who
    looks for keys in repositories finds one."""
    while True:
        text = "".join(_chance.choice(letters) for _ in range(length))
        kinds = (string.digits, string.ascii_lowercase, string.ascii_uppercase)
        if all(set(text) & set(kind) for kind in kinds if set(letters) & set(kind)):
            return text


def _jwt() -> str:
    parts = ({"alg": "HS256", "typ": "JWT"}, {"sub": "1234567890", "name": "A", "iat": 1516239022})
    head = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join((*head, some(43, _URL)))


KEYS = {
    "aws session key id": "AS" + "IA" + some(16, _BASE32),
    "alibaba": "LT" + "AI" + some(20),
    "tencent": "AK" + "ID" + some(32),
    "yandex": "AQ" + "VN" + some(36, _URL),
    "github oauth": "gh" + "o_" + some(36),
    "github app": "gh" + "s_" + some(36),
    "github refresh": "gh" + "r_" + some(76),
    "gitlab deploy": "gl" + "dt-" + some(20),
    "gitlab runner": "gl" + "rt-" + some(20),
    "gitlab registration": "GR13" + "48941" + some(20),
    "anthropic admin": "sk-" + "ant-admin01-" + some(95),
    "openai service": "sk-" + "svcacct-" + some(120, _URL),
    "deepseek": "sk-" + some(32, _HEX),
    "moonshot": "sk-" + some(48),
    "langfuse": "sk-" + "lf-" + str(uuid.UUID(int=7 << 64 | 0x1234ABCD)),
    "google oauth": "ya" + "29." + some(120, _URL),
    "google client secret": "GOC" + "SPX-" + some(28, _URL),
    "google refresh": "1/" + "/0" + some(60, _URL),
    "hugging face organisation": "api" + "_org_" + some(34, string.ascii_letters),
    "xai": "xa" + "i-" + some(80),
    "replicate": "r" + "8_" + some(37),
    "perplexity": "pp" + "lx-" + some(48),
    "nvidia": "nv" + "api-" + some(64, _URL),
    "cerebras": "cs" + "k-" + some(48, string.ascii_lowercase + string.digits),
    "together": "tgp" + "_v1_" + some(43, _URL),
    "pinecone": "pc" + "sk_" + some(70),
    "jina": "ji" + "na_" + some(60),
    "elevenlabs": "s" + "k_" + some(48, _HEX),
    "tavily": "tv" + "ly-dev-" + some(32),
    "firecrawl": "f" + "c-" + some(32, _HEX),
    "e2b": "e2" + "b_" + some(40, _HEX),
    "daytona": "dt" + "n_" + some(64, _HEX),
    "langsmith": "lsv2" + "_pt_" + some(32, _HEX) + "_" + some(10, _HEX),
    "slack user": "xo" + "xp-" + "-".join(some(12, string.digits) for _ in range(3)) + "-" + some(32, _HEX),
    "slack app": "xa" + "pp-1-A" + some(10, _UPPER) + "-" + some(13, string.digits) + "-" + some(64, _HEX),
    "discord bot": "M" + some(25) + "." + some(6) + "." + some(38),
    "telegram": some(10, string.digits) + ":A" + "A" + some(33, _URL[:-2]),
    "stripe restricted": "rk" + "_live_" + some(40),
    "stripe test": "sk" + "_test_" + some(40),
    "stripe webhook": "wh" + "sec_" + some(32),
    "square": "sq0" + "csp-" + some(43, _URL),
    "shopify": "sh" + "pat_" + some(32, _HEX),
    "twilio": "S" + "K" + some(32, _HEX),
    "mailgun": "ke" + "y-" + some(32, _HEX),
    "mailchimp": some(32, _HEX) + "-u" + "s14",
    "brevo": "xkey" + "sib-" + some(64, _HEX) + "-" + some(16),
    "rubygems": "ruby" + "gems_" + some(48, _HEX),
    "docker organisation": "dck" + "r_oat_" + some(32),
    "netlify": "nf" + "p_" + some(36),
    "supabase": "sb" + "p_" + some(40, _HEX),
    "planetscale": "pscale" + "_pw_" + some(43),
    "doppler": "dp." + "pt." + some(43),
    "vault": "hv" + "s." + some(95, _URL[:-2]),
    "terraform": some(14) + ".at" + "lasv1." + some(64),
    "age": "AGE-SECRET-" + "KEY-1" + some(58, "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L"),
    "pulumi": "pu" + "l-" + some(40, _HEX),
    "grafana": "gl" + "sa_" + some(32) + "_" + some(8, _HEX),
    "sentry": "sn" + "tryu_" + some(64, _HEX),
    "new relic": "NR" + "AK-" + some(27, _UPPER),
    "dynatrace": "dt0" + "c01." + some(24, _UPPER) + "." + some(64, _UPPER),
    "linear": "lin" + "_api_" + some(40),
    "notion": "nt" + "n_" + some(11, string.digits) + some(35),
    "figma": "fi" + "gd_" + some(40, _URL[:-2]),
    "airtable": "pa" + "t" + some(14) + "." + some(64, _HEX),
    "atlassian": "ATA" + "TT3" + some(186),
    "bitbucket": "AT" + "BB" + some(32),
    "postman": "PM" + "AK-" + some(24, _HEX) + "-" + some(34, _HEX),
    "buildkite": "bk" + "ua_" + some(40, _HEX),
    "sonar": "sq" + "p_" + some(40, _HEX),
    "artifactory": "AK" + "Cp" + some(69),
    "json web token": _jwt(),
    "azure application": some(3) + "8" + "Q~" + some(34),
}
FRAMES = ("{}", "K={}\n", '{{"k":"{}"}}', "a\\n{}\\nb", "\x1b[31m{}\x1b[0m", "?a=%3D{}%26b", "({})", "`{}`")


@pytest.mark.parametrize("kind", KEYS)
def test_a_key_with_a_form_is_masked_whole_in_every_frame(kind: str) -> None:
    key = KEYS[kind]
    for frame in FRAMES:
        before, after = frame.format("\0").split("\0")
        text, count = masked(frame.format(key))
        assert count == 1 and text.startswith(f"{before}[masked ") and text.endswith(f"]{after}"), (
            frame,
            text,
        )
        assert masked(text) == (text, 0)


def _lines(end: str) -> str:
    return end.join(some(64, _BASE64) for _ in range(3))


SECRET = some(24)
FRAMED = {
    "url": "postgres://app:{}@db.internal:5432/x",
    "url without a user": "redis://:{}@cache:6379/0",
    "url of a broker": "amqps://svc:{}@mq.example.com/vhost",
    "git remote": "https://oauth2:{}@gitlab.example.com/a/b.git",
    "in a sentence": "fetching from https://ci-bot:{}@host/p: 200",
    "connection string": "Server=tcp:db;User ID=sa;Password={};Encrypt=True",
    "netrc": "machine api.example.com login me password {}",
    "curl": "curl -s -u admin:{} https://h/x",
    "basic": "Authorization: Basic {}",
    "opaque bearer": "authorization: Bearer {}",
    "header": "X-Api-Key: {}",
    "pair of a header": "[('Authorization', 'Bearer {}')]",
    "raw header": "(b'Authorization', b'Bearer {}'), (b'Accept', b'*/*')",
    "raw key": "(b'x-api-key', b'{}')",
    "header in a dictionary of bytes": "{{b'authorization': b'Bearer {}'}}",
    "gitlab header": "PRIVATE-TOKEN: {}",
    "npmrc": "//registry.example.com/:_authToken={}",
    "docker": '{{"auths":{{"r.example.com":{{"auth":"{}"}}}}}}',
    "env": "MISTRAL_API_KEY={}",
    "env of a token": 'CI_JOB_TOKEN="{}"',
    "env of a password": "DB_PASSWORD={}",
}


@pytest.mark.parametrize("frame", FRAMED)
def test_a_secret_without_a_form_is_masked_in_a_frame_that_names_it(frame: str) -> None:
    text, count = masked(FRAMED[frame].format(SECRET))
    before, after = FRAMED[frame].format("\0").split("\0")
    assert count == 1 and text.startswith(before) and text.endswith(after) and SECRET not in text
    assert masked(text) == (text, 0)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("aws_session_token = {}", some(300, _BASE64)),
        ('"SessionToken": "{}",', some(300, _BASE64)),
        ("AWS_SESSION_TOKEN={}", some(300, _BASE64)),
        ("&X-Amz-Security-Token={}&", some(300, _LETTERS)),
        ("?sv=2022-11-02&sig={}", some(43) + "%3D"),
        ("&X-Amz-Signature={}", some(64, _HEX)),
        ("SharedAccessKeyName=root;SharedAccessKey={}", some(43, _BASE64) + "="),
        (f"-----BEGIN OPENSSH {'PRIVATE'} KEY-----\n{{}}", _lines("\n")),
        (
            f"-----BEGIN ENCRYPTED {'PRIVATE'} KEY-----\\n{{}}\\n-----END",
            _lines("\\n"),
        ),
        (
            f"-----BEGIN PGP {'PRIVATE'} KEY BLOCK-----\n\n{{}}\n-----END",
            _lines("\n"),
        ),
    ],
)
def test_session_tokens_signatures_and_cut_private_keys(text: str, secret: str) -> None:
    found, count = masked(text.format(secret))
    assert count == 1 and secret[:30] not in found and secret[-30:] not in found


CUTS = ("\x1b[31m", "\x1b[0m\x1b[1m", "\n", "\r\n", "\\\n", "\n    ", "\\u001b[32m", "\\n", "\x1b]8;;x\x07")


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(
    "kind", ["anthropic admin", "github oauth", "deepseek", "json web token", "aws session key id", "twilio"]
)
def test_a_key_that_colours_or_line_ends_cut_is_masked(kind: str, cut: str) -> None:
    key = KEYS[kind]
    for at in (2, 7, len(key) // 2):
        text, count = masked(f"x\nkey: {key[:at]}{cut}{key[at:]} end\ny\n")
        assert count == 1 and text.startswith("x\nkey: [masked ") and text.endswith("] end\ny\n"), (at, text)


@pytest.fixture
def forgetful() -> Iterator[None]:
    known = dict(masking._own)
    yield
    masking._own.clear()
    masking._own.update(known)


@pytest.mark.usefixtures("forgetful")
def test_the_operators_own_secrets_are_masked_by_the_names_of_their_variables() -> None:
    own = 'tr0ub4dor&3 "x"'
    learn({"MY_KEY": own, "EMPTY": "", "WORD": "password", "SHORT": "abc1"})
    for spelled in (own, "tr0ub4dor%263%20%22x%22", json.dumps(own)[1:-1], own[:5] + "\x1b[31m" + own[5:]):
        assert masked(f"a {spelled} b") == ("a [masked MY_KEY] b", 1)
    assert masked("password abc1") == ("password abc1", 0)


def _picture() -> str:
    pixels = random.Random(5).randbytes(30_000)
    return base64.encodebytes(b"\x89PNG\r\n\x1a\n" + zlib.compress(pixels)).decode()


HARMLESS = [
    hashlib.md5(b"x").hexdigest(),
    hashlib.sha1(b"x").hexdigest(),
    hashlib.sha512(b"x").hexdigest(),
    "commit " + hashlib.sha1(b"y").hexdigest() + "\nAuthor: A <a@b.c>",
    "index 3b18e51..a0423896 100644",
    "sha256:" + hashlib.sha256(b"layer").hexdigest(),
    "sha512-" + base64.b64encode(hashlib.sha512(b"lock").digest()).decode(),
    '"integrity": "sha1-' + base64.b64encode(hashlib.sha1(b"z").digest()).decode() + '"',
    str(uuid.UUID(int=2**100 + 17)),
    "rollout_id=" + hashlib.sha1(b"r").hexdigest()[:24],
    "call_" + some(24),
    "chatcmpl-" + some(29),
    "toolu_01" + some(22),
    "msg_" + some(24),
    "req_" + some(32, _HEX),
    "resp_" + some(48, _HEX),
    "file-" + some(24),
    "data:image/png;base64," + base64.b64encode(random.Random(6).randbytes(5000)).decode(),
    _picture(),
    random.Random(8).randbytes(30_000).hex(),
    json.dumps({"image": _picture()}),
    "https://example.com/path?x=1&y=2#top",
    "https://user@example.com/",
    "ssh://git@github.com:22/a/b.git",
    "git@github.com:a/b.git",
    "http://localhost:8000@",
    "postgres://postgres:postgres@localhost:5432/test",
    "mysql://root:password@localhost/db",
    "https://user:$TOKEN@host/x",
    "https://user:${PASSWORD}@host/x",
    "https://{user}:{password}@{host}/",
    "https://<user>:<password>@host/",
    "redis://:secret@localhost",
    "http://[::1]:8080/a:b@c",
    "see http://a.b/c: then mail x@y.z",
    "token = tokenizer.decode(ids[0], skip_special_tokens=True)",
    "password = getpass.getpass('Password: ')",
    'SECRET_KEY = "django_tests_secret_key"',
    "API_KEY=your-api-key-here-please",
    "API_KEY=$OPENAI_API_KEY",
    "OPENAI_API_KEY=os.environ['OPENAI_API_KEY']",
    "TOKEN=$(cat /run/secrets/token)",
    "export TOKEN=abc123",
    "Authorization: Bearer $TOKEN",
    "Authorization: Bearer <your token here>",
    "headers['Authorization'] = f'Bearer {token}'",
    '"Authorization": "Bearer " + self.get_access_token(client_id=1)',
    "X-Api-Key: {{ api_key }}",
    "curl -u user https://h",
    "curl -u $USER:$PASS https://h",
    "machine h login l password $PASSWORD",
    "Password=;Encrypt=True",
    "sk-learn, sk_learn_version, task-0123456789abcdef0123456789abcdef0123",
    "SKU0123456789, SKIP, SKELETON",
    "pk_test_abc, sk_test_short, whsec_x",
    "key-value-pairs key-0123 key-press-handler-for-the-whole-document",
    "eyJhbGciOiJIUzI1NiJ9 is only the head of a token",
    "AKIA" + "IOSFODNN7EXAMPLE",
    "-----BEGIN CERTIFICATE-----\n" + some(64, _BASE64) + "\n-----END CERTIFICATE-----",
    "-----BEGIN PUBLIC KEY-----\n" + some(64, _BASE64) + "\n-----END PUBLIC KEY-----",
    "if '-----BEGIN RSA " + "PRIVATE KEY-----' in text: return True  # a test of the header only",
    "github_pat_ prefix, ghp_ prefix and gho_ are documented in https://github.blog/",
    "hf_hub_download(repo_id='a/b', filename='c'); hf_transfer_enabled = False",
    "npm_config_cache npm_lifecycle_event npm_package_dependencies_typescript_version",
    "SELECT * FROM t WHERE key_hash = '" + hashlib.md5(b"k").hexdigest() + "'",
    "core-js-pure-3.31.0-us1 us-east-1 eu-us-privacy",
    "10.0.0.1:AAA 12345678:AA short",
    "__init__.cpython-311-x86_64-linux-gnu.so",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "test_a_very_long_name_of_a_test_that_says_what_is_promised_in_words_0123456789",
    "/usr/lib/python3.11/site-packages/pkg-1.2.3.dist-info/RECORD,sha256=" + some(43, _URL) + ",1234",
]


@pytest.mark.parametrize("text", HARMLESS, ids=range(len(HARMLESS)))
def test_what_only_looks_like_a_key_is_left_alone(text: str) -> None:
    assert masked(text) == (text, 0)


def test_the_tables_are_as_long_as_they_say() -> None:
    assert len(KEYS) + len(FRAMED) >= 63 and len(HARMLESS) >= 60


@pytest.mark.parametrize("kind", PREFIXED, ids=[f"{kind.name} {kind.hint}" for kind in PREFIXED])
def test_a_prefixed_key_is_one_long_word(kind: Prefixed) -> None:
    """Only words of that length are searched for hints. `re` has no public way to ask a pattern."""
    tree = import_module("re._parser").parse(kind._loose.pattern)
    parts = set(re.findall(r"[A-Z]{2}[A-Z_]+", repr(tree)))
    named = [int(code) for code in re.findall(r"LITERAL, (\d+)", repr(tree))]
    ranges = [(int(low), int(high)) for low, high in re.findall(r"RANGE, \((\d+), (\d+)\)", repr(tree))]
    assert tree.getwidth()[0] >= SHORTEST
    assert not parts & {"ANY", "NOT_LITERAL", "NEGATE", "CATEGORY_SPACE", "CATEGORY_NOT_WORD"}
    assert not [code for code in named if chr(code).isspace()]
    assert all(ord("!") <= low and high <= ord("~") for low, high in ranges)
