"""Images of local sandboxes from Dockerfiles, built by buildah or docker where one of them is installed."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from orchard.injector.agent.errors import AgentError
from orchard.injector.agent.local.archives import import_image
from orchard.injector.agent.local.images import StoredImage
from orchard.pipelines.tasks.errors import TaskError

BUILD_SECONDS = 3600.0
FILES = ("Containerfile", "Dockerfile")
"""The first of them that a build context has, as buildah looks for them."""
_BUILDERS = {
    "buildah": (
        ("buildah", "build", "--tag", "{name}", "--file", "{file}", "{context}"),
        ("buildah", "push", "--quiet", "{name}", "docker-archive:{archive}:{name}"),
    ),
    "docker": (
        ("docker", "build", "--tag", "{name}", "--file", "{file}", "{context}"),
        ("docker", "save", "{name}", "--output", "{archive}"),
    ),
}
"""Program to how it builds an image and writes it into an archive."""


def build_image(state: Path, context: Path, name: str, file: Path | None = None) -> StoredImage:
    """Build the Containerfile or Dockerfile of `context` and import it for the local sandboxes of `state`.

    Raises TaskError: no such file, no builder, or the last lines of what the builder said when it failed.
    """
    dockerfile = file or next((context / each for each in FILES if (context / each).is_file()), None)
    if dockerfile is None or not dockerfile.is_file():
        missing = dockerfile or context / FILES[-1]
        raise TaskError(f"there is no {missing}: give the directory of a Containerfile or Dockerfile")
    builder = next((each for each in _BUILDERS if shutil.which(each)), None)
    if builder is None:
        raise TaskError(
            f"neither buildah nor docker is installed to build {dockerfile}: install one of them, or "
            f"build it elsewhere, `docker save {name} -o image.tar`, then `orchard images import image.tar`"
        )
    with tempfile.TemporaryDirectory(prefix="orchard-image-") as directory:
        archive = Path(directory) / "image.tar"
        words = {"name": name, "file": str(dockerfile), "context": str(context), "archive": str(archive)}
        for command in _BUILDERS[builder]:
            _run([word.format_map(words) for word in command])
        try:
            return import_image(state, archive, name)
        except AgentError as error:
            raise TaskError(f"the image that {builder} built from {dockerfile}: {error.detail}") from error


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=BUILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TaskError(f"`{' '.join(command)}` did not end within {BUILD_SECONDS:g} s") from None
    if done.returncode != 0:
        lines = (line.strip() for line in done.stdout.decode(errors="replace").splitlines())
        said = [line for line in lines if line][-3:]
        raise TaskError(f"`{' '.join(command)}` failed with {done.returncode}: {'; '.join(said)}")
