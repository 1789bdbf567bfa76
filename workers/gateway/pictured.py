"""Pictures that a program sent, taken out of the text that has marks in their places. Pure."""

from orchard.schemas.messages import Role
from orchard.workers.episode.pictures import Picture, picture_of_url
from orchard.workers.gateway.words import Said, image_mark


def pictured(said: Said) -> tuple[str, list[Picture], list[str]]:
    """The text of a message with its pictures at their places, and the URLs that keep their marks in the
    text: addresses in a network, and what is no picture."""
    text, at = "", 0
    pictures: list[Picture] = []
    others: list[str] = []
    for url in said.images:
        mark = image_mark(url)
        place = said.text.index(mark, at)
        text += said.text[at:place]
        at = place + len(mark)
        picture = None if said.role is Role.ASSISTANT else picture_of_url(url, at=len(text))
        if picture is None:
            text += mark
            others.append(url)
        else:
            pictures.append(picture)
    return text + said.text[at:], pictures, others
