"""What a Dockerfile says of an image that only the sandbox service knows. Pure but for reading."""

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_HEREDOC = re.compile(r"<<-?([\"']?)(\w+)\1")


def working_directory(dockerfile: Path) -> str:
    """Path of the last WORKDIR of the last stage and of the stages that it is from; / where there is none.
    Raises ValueError for one with a variable."""
    if not dockerfile.is_file():
        return "/"
    workdir, named, stages = PurePosixPath("/"), "", dict[str, PurePosixPath]()
    # comments may be in any encoding
    for word, rest in _instructions(dockerfile.read_text(encoding="utf-8", errors="replace")):
        if word == "FROM":
            image, _, name = (*(each for each in rest.split() if not each.startswith("--")), "", "")[:3]
            workdir, named = stages.get(image.lower(), PurePosixPath("/")), name.lower()
        elif word == "WORKDIR":
            if "$" in rest:
                raise ValueError(
                    f"{dockerfile} has WORKDIR {rest}, and what that is cannot be known here: write workdir "
                    "under [environment] in task.toml, or WORKDIR without a variable"
                )
            workdir /= rest.strip("\"'")
        if named:
            stages[named] = workdir
    return str(workdir)


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    """The instructions, each on one line, without comments and the texts that follow some of them."""
    lines = iter(text.splitlines())
    for line in lines:
        said = line.strip()
        if not said or said.startswith("#"):
            continue
        while said.endswith("\\"):
            following = next(lines, "").strip()
            said = said[:-1] + ("\\" if following.startswith("#") else following)
        for _, end in _HEREDOC.findall(said):
            while next(lines, end).strip() != end:
                pass
        word, rest = (*said.split(maxsplit=1), "")[:2]
        yield word.upper(), rest
