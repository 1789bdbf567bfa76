"""Puts programs on the PATH of a sandbox: their layers over its image, and links to their commands."""

from orchard.injector.agent import files
from orchard.injector.agent.errors import NotFound, RequestInvalid
from orchard.injector.agent.layer_files import COMMANDS, NAME, PLACE
from orchard.injector.agent.local.images import ImageStore, StoredImage

LINKS = "/usr/local/bin"
"""Directory of the links: on the PATH of usual images, and of login shells, whose profile replaces PATH."""


def program_image(store: ImageStore, program: str, owner: str | None) -> StoredImage:
    """Returns the program's newest layer of those that `owner` may use. Raises NotFound (`image_missing`)."""
    found = [
        image
        for image in store.all()
        if (match := NAME.fullmatch(image.name)) is not None
        and match[1] == program
        and (owner is None or image.owner in (None, owner))
    ]
    if not found:
        raise NotFound(
            f"the program {program} is not installed at this sandbox service: run `orchard harness install "
            f"{program}`",
            reason="image_missing",
        )
    return max(found, key=lambda image: image.created_at or 0.0)


def link_commands(root: int, program: str) -> None:
    """Links the program's commands, replacing what the image has of these names.

    Raises RequestInvalid if it has none. The layer is looked at inside of the sandbox: its files may be
    anybody's.
    """
    place = f"{PLACE}/{program}/{COMMANDS}"
    try:
        commands = files.listing(root, place)
    except NotFound:
        commands = []
    if not commands:
        raise RequestInvalid(f"the program {program} has no command for users: leave it out of `programs`")
    files.make_directory(root, LINKS)
    for command in commands:
        files.link(root, f"{LINKS}/{command['name']}", f"{place}/{command['name']}")
