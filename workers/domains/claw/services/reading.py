"""Services about texts: notes, knowledge base, documents, feeds, and web search over given pages."""

from typing import Any

from orchard.workers.domains.claw.declarations import (
    FORBIDDEN,
    Collection,
    Record,
    Service,
    ServiceError,
    ServiceOperation,
    ServiceState,
    creating,
    deleting,
    flag,
    getting,
    listing,
    text,
    texts,
    updating,
    when,
    whole,
)

PAGES_OF_NOTES = Collection(
    "notes",
    "note",
    {
        "title": text(),
        "body": text(),
        "tags": texts(),
        "folder": text("Name of the folder"),
        "updated": when(),
    },
    required=("title", "body"),
    defaults={"tags": [], "folder": "notes"},
)


def _updated(state: ServiceState, *_: Any) -> Record:
    return {"updated": state.stamp}


NOTES = Service(
    "notes",
    "Notes of the owner",
    (PAGES_OF_NOTES,),
    (
        listing(
            PAGES_OF_NOTES,
            "List notes without their text.",
            filters=("folder", "tags"),
            search=("title", "body"),
            since="updated",
            hide=("body",),
        ),
        getting(PAGES_OF_NOTES, "Read one note."),
        creating(
            PAGES_OF_NOTES,
            "Write a note.",
            takes=("title", "body", "tags", "folder"),
            required=("title", "body"),
            stamps=_updated,
        ),
        updating(PAGES_OF_NOTES, "Change a note.", takes=("title", "body", "tags", "folder"), sets=_updated),
        deleting(PAGES_OF_NOTES, "Delete a note for good."),
    ),
)

ARTICLES = Collection(
    "articles",
    "article",
    {"title": text(), "body": text(), "category": text(), "tags": texts(), "updated": when()},
    required=("title", "body"),
    defaults={"tags": []},
)

KNOWLEDGE = Service(
    "knowledge",
    "Knowledge base of the organization, to be read",
    (ARTICLES,),
    (
        listing(
            ARTICLES,
            "Search articles.",
            name="search_articles",
            filters=("category", "tags"),
            search=("title", "body", "category"),
            hide=("body",),
        ),
        getting(ARTICLES, "Read one article."),
    ),
)

FILES = Collection(
    "documents",
    "document",
    {
        "title": text(),
        "body": text(),
        "owner": text("Address"),
        "shared_with": texts("Addresses of those who may read it"),
        "editors": texts("Addresses of those who may change it"),
        "folder": text("Name of the folder"),
        "updated": when(),
    },
    required=("title", "body", "owner"),
    defaults={"shared_with": [], "editors": [], "folder": "documents"},
)


def _readable(state: ServiceState, record: Record) -> bool:
    return state.owner == record["owner"] or state.owner in [*record["shared_with"], *record["editors"]]


def _editable(state: ServiceState, record: Record, _given: Record) -> None:
    if state.owner != record["owner"] and state.owner not in record["editors"]:
        raise ServiceError(
            FORBIDDEN, f"{record['owner']} owns it, and {state.owner} is not among its editors"
        )


def _mine(state: ServiceState, record: Record, _given: Record) -> None:
    if state.owner != record["owner"]:
        raise ServiceError(
            FORBIDDEN, f"{record['owner']} owns it, and only who owns a document shares or deletes it"
        )


def _shared(_state: ServiceState, record: Record, given: Record) -> Record:
    added = [each for each in given["shared_with"] if each not in record["shared_with"]]
    return {"shared_with": [*record["shared_with"], *added]}


DOCUMENTS = Service(
    "documents",
    "Documents that the owner has or that others share",
    (FILES,),
    (
        listing(
            FILES,
            "List documents without their text.",
            filters=("owner", "folder"),
            search=("title", "body"),
            since="updated",
            hide=("body",),
            visible=_readable,
        ),
        getting(FILES, "Read one document.", visible=_readable),
        creating(
            FILES,
            "Write a document.",
            takes=("title", "body", "folder"),
            required=("title", "body"),
            stamps=lambda state, _: {"owner": state.owner, "updated": state.stamp},
        ),
        updating(
            FILES, "Change a document.", takes=("title", "body", "folder"), sets=_updated, rules=(_editable,)
        ),
        updating(
            FILES,
            "Let others read a document; they are told.",
            name="share_document",
            takes=("shared_with",),
            required=("shared_with",),
            sets=_shared,
            rules=(_mine,),
            irreversible=True,
        ),
        deleting(FILES, "Delete a document for good.", rules=(_mine,)),
    ),
)

ENTRIES = Collection(
    "entries",
    "entry",
    {
        "feed": text("Name of the feed"),
        "title": text(),
        "summary": text(),
        "url": text(),
        "published": when(),
        "is_read": flag(),
        "starred": flag(),
    },
    required=("feed", "title", "published"),
    defaults={"is_read": False, "starred": False},
)


def _feeds(state: ServiceState, _given: Record) -> Any:
    counts: dict[str, int] = {}
    for entry in state.all(ENTRIES):
        counts[entry["feed"]] = counts.get(entry["feed"], 0) + (not entry["is_read"])
    return {"feeds": [{"feed": feed, "unread": unread} for feed, unread in counts.items()]}


FEEDS = Service(
    "feeds",
    "News feeds that the owner follows",
    (ENTRIES,),
    (
        ServiceOperation("list_feeds", "List feeds with the number of their unread entries.", {}, _feeds),
        listing(
            ENTRIES,
            "List entries, newest first.",
            filters=("feed", "is_read", "starred"),
            search=("title", "summary"),
            since="published",
        ),
        updating(ENTRIES, "Mark an entry as read or starred.", takes=("is_read", "starred")),
    ),
)

PAGES = Collection(
    "pages",
    "page",
    {"url": text(), "title": text(), "body": text(), "published": when()},
    required=("url", "title", "body"),
)
_SHOWN = 200


def _search(state: ServiceState, given: Record) -> Any:
    """Ranks pages by occurrences of the words; titles count three times, ties keep the pages' order."""
    words = given["query"].lower().split()

    def score(page: Record) -> int:
        title, body = page["title"].lower(), page["body"].lower()
        return sum(3 * title.count(word) + body.count(word) for word in words)

    ranked = sorted(((score(page), page) for page in state.all(PAGES)), key=lambda each: -each[0])
    return {
        "results": [
            {"url": page["url"], "title": page["title"], "snippet": page["body"][:_SHOWN]}
            for found, page in ranked[: min(given.get("max_results", 5), 20)]
            if found
        ]
    }


def _fetch(state: ServiceState, given: Record) -> Any:
    for page in state.all(PAGES):
        if page["url"] == given["url"]:
            return {"url": page["url"], "title": page["title"], "body": page["body"]}
    raise ServiceError(404, f"no page at {given['url'][:200]}")


WEB = Service(
    "web",
    "Web search over the pages of the world; there is no other web",
    (PAGES,),
    (
        ServiceOperation(
            "search",
            "Search the web.",
            {"query": text("Words to look for"), "max_results": whole("At most so many; 5 unless given", 1)},
            _search,
            ("query",),
        ),
        ServiceOperation("fetch", "Read a page.", {"url": text("Address of the page")}, _fetch, ("url",)),
    ),
)
