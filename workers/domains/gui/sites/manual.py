"""The site `manual`: documentation with chapters, tables of settings, paged search results, and feedback."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchard.schemas.gui import Records
from orchard.workers.domains.gui.sites import vocabulary
from orchard.workers.domains.gui.sites.pages import (
    Link,
    Missing,
    Redirect,
    SitePage,
    SiteResponse,
    clean,
    paged,
)

PAGE = 5
_CHAPTERS = {
    "Install": ("Requirements", "Packages", "Upgrades", "Removal"),
    "Storage": ("Volumes", "Backups", "Quotas", "Encryption"),
    "Network": ("Ports", "Proxies", "Certificates", "Timeouts"),
    "Access": ("Users", "Roles", "Tokens", "Audit"),
}
_NOUNS = (
    "buffer", "cache", "queue", "session", "thread", "retry", "batch", "index", "log", "page", "lease",
    "worker",
)  # fmt: skip
_ASPECTS = ("limit", "size", "timeout", "interval", "count", "depth")
_UNITS = {"limit": "entries", "size": "MiB", "timeout": "s", "interval": "s", "count": "", "depth": "levels"}


@dataclass(frozen=True, kw_only=True)
class Setting:
    name: str
    default: int
    unit: str
    since: str
    """The version that introduced it."""


@dataclass(frozen=True, kw_only=True)
class Article:
    slug: str
    chapter: str
    title: str
    lead: str
    settings: tuple[Setting, ...]


class ManualSite:
    screen: tuple[int, int] | None = None

    def __init__(self, seed: int) -> None:
        dice = random.Random(f"manual-{seed}")
        self.title, self.host = vocabulary.house(dice, "Docs")
        self.articles = _articles(dice, self.title.split()[0])
        self.links: tuple[Link, ...] = (
            Link("home", "Contents", "/"),
            *(Link(f"chapter:{each}", each, f"/chapter/{each.lower()}") for each in _CHAPTERS),
        )
        self.feedback: dict[str, str] = {}
        self.reports: list[dict[str, str]] = []

    def records(self) -> Records:
        return {"feedback": dict(self.feedback), "reports": [dict(each) for each in self.reports]}

    def get(self, path: str, query: Mapping[str, str]) -> SiteResponse:
        match path.strip("/").split("/"):
            case [""]:
                chapters = {each: [a for a in self.articles if a.chapter == each] for each in _CHAPTERS}
                return self._page("home", "Contents", "home", chapters=chapters)
            case ["chapter", name]:
                found = [each for each in self.articles if each.chapter.lower() == name]
                if not found:
                    raise Missing(path)
                return self._page(f"chapter:{found[0].chapter}", found[0].chapter, "chapter", articles=found)
            case ["search"]:
                return self._results(query)
            case ["page", slug]:
                return self._article(slug)
            case ["report", slug]:
                return self._page(
                    f"report:{slug}", "Report", "report", article=self.article(slug), problems_=[]
                )
        raise Missing(path)

    def post(self, path: str, form: Mapping[str, str]) -> SiteResponse:
        match path.strip("/").split("/"):
            case ["feedback", slug] if form.get("helpful") in ("yes", "no"):
                self.feedback[self.article(slug).title] = form["helpful"]
                return Redirect(f"/page/{slug}")
            case ["report", slug]:
                article, text = self.article(slug), clean(form.get("text", ""))
                if not text or form.get("kind") not in ("error", "wish"):
                    return self._page(
                        f"report:{slug}", "Report", "report", article=article,
                        problems_=["Please choose a kind and write what it is."],
                    )  # fmt: skip
                self.reports.append({"page": article.title, "kind": form["kind"], "text": text})
                return Redirect(f"/page/{slug}")
        raise Missing(path)

    def article(self, slug: str) -> Article:
        found = next((each for each in self.articles if each.slug == slug), None)
        if found is None:
            raise Missing(slug)
        return found

    def matching(self, text: str) -> list[Article]:
        """Lists the articles that contain all words, those with one in their title first."""
        wanted = clean(text).lower().split()
        found = [
            each
            for each in self.articles
            if all(
                word
                in " ".join((each.title, each.chapter, each.lead, *(s.name for s in each.settings))).lower()
                for word in wanted
            )
        ]
        return sorted(found, key=lambda each: not any(word in each.title.lower() for word in wanted))

    def _results(self, query: Mapping[str, str]) -> SitePage:
        text = clean(query.get("q", ""))
        found = self.matching(text)
        shown, page, pages = paged(found, query.get("page", ""), PAGE)
        return self._page(
            f"results:{page}/{pages}", "Search", "results", articles=shown,
            count=len(found), page=page, pages=pages, query={"q": text},
        )  # fmt: skip

    def _article(self, slug: str) -> SitePage:
        article = self.article(slug)
        index = self.articles.index(article)
        around = {
            "before": self.articles[index - 1] if index else None,
            "after": self.articles[index + 1] if index + 1 < len(self.articles) else None,
        }
        said = self.feedback.get(article.title, "")
        return self._page(f"page:{slug}", article.title, "article", article=article, said=said, **around)

    def _page(self, name: str, title: str, template: str, **data: Any) -> SitePage:
        return SitePage(name=name, title=title, template=f"manual/{template}.html", data=data)


def _articles(dice: random.Random, product: str) -> list[Article]:
    names = [f"{noun}_{aspect}" for noun in _NOUNS for aspect in _ASPECTS]
    dice.shuffle(names)
    versions = [f"{major}.{minor}" for major in (1, 2, 3) for minor in range(10)]
    found = []
    for chapter, titles in _CHAPTERS.items():
        for title in titles:
            rows = tuple(
                Setting(
                    name=name, default=dice.randrange(2, 900), unit=_UNITS[name.partition("_")[2]],
                    since=dice.choice(versions),
                )
                for name in (names.pop() for _ in range(4))
            )  # fmt: skip
            lead = (
                f"How {product} handles {title.lower()}, and which settings change it. The defaults suit a "
                f"machine with {dice.randrange(2, 64)} GiB of memory."
            )
            slug = f"{chapter}-{title}".lower()
            found.append(Article(slug=slug, chapter=chapter, title=title, lead=lead, settings=rows))
    return found
