"""How sites look: layouts arrange a page, themes set its sizes, colours and fonts."""

from dataclasses import dataclass
from typing import Literal

Split = Literal["train", "held-out"]


@dataclass(frozen=True, kw_only=True)
class SiteLayout:
    """The arrangement of a page. Each field becomes a class of `body`, which the style sheet reads."""

    nav: Literal["top", "left", "right", "bottom"]
    items: Literal["cards", "list", "rows"]
    """Collections are cards in columns, a list with details, or dense rows."""
    filters: Literal["left", "right", "above"]
    labels: Literal["above", "beside"]
    actions: Literal["start", "end", "wide"]
    reverse: bool = False
    """Whether controls and navigation are in the opposite order, and a page's details before its head."""

    @property
    def classes(self) -> str:
        named = [f"{key}-{getattr(self, key)}" for key in ("nav", "items", "filters", "labels", "actions")]
        return " ".join([*named, *(["reverse"] if self.reverse else [])])


LAYOUTS: dict[Split, dict[str, SiteLayout]] = {
    "train": {
        "top-cards": SiteLayout(nav="top", items="cards", filters="left", labels="above", actions="start"),
        "side-list": SiteLayout(nav="left", items="list", filters="above", labels="beside", actions="end"),
        "top-rows": SiteLayout(
            nav="top", items="rows", filters="right", labels="beside", actions="end", reverse=True
        ),
        "side-cards": SiteLayout(nav="left", items="cards", filters="right", labels="above", actions="wide"),
    },
    "held-out": {
        "right-list": SiteLayout(nav="right", items="list", filters="left", labels="above", actions="end"),
        "bottom-cards": SiteLayout(
            nav="bottom", items="cards", filters="above", labels="beside", actions="wide", reverse=True
        ),
    },
}
"""Layouts by name; those for evaluation are apart from those for training."""


@dataclass(frozen=True, kw_only=True)
class SiteTheme:
    size: int
    family: str
    ink: str
    paper: str
    panel: str
    """Background of navigation and panels."""
    accent: str
    on_accent: str
    line: str
    radius: int
    space: int


_SANS, _SERIF, _MONO = "DejaVu Sans, sans-serif", "DejaVu Serif, serif", "DejaVu Sans Mono, monospace"
THEMES: dict[Split, dict[str, SiteTheme]] = {
    "train": {
        "plain": SiteTheme(
            size=16, family=_SANS, ink="#1c2430", paper="#ffffff", panel="#f1f4f8", accent="#1f5fbf",
            on_accent="#ffffff", line="#c9d2dd", radius=6, space=14,
        ),
        "warm": SiteTheme(
            size=18, family=_SERIF, ink="#3a2a1c", paper="#fffaf2", panel="#f6e9d6", accent="#b4531a",
            on_accent="#ffffff", line="#e2ccae", radius=2, space=18,
        ),
        "night": SiteTheme(
            size=16, family=_SANS, ink="#e6e9ef", paper="#171b22", panel="#232a35", accent="#4fc3a1",
            on_accent="#0d1117", line="#3a4454", radius=10, space=14,
        ),
        "dense": SiteTheme(
            size=14, family=_SANS, ink="#222222", paper="#fdfdfd", panel="#eeeeea", accent="#6a3fa0",
            on_accent="#ffffff", line="#cfcfc8", radius=0, space=9,
        ),
    },
    "held-out": {
        "large": SiteTheme(
            size=20, family=_SANS, ink="#12301f", paper="#f6fff9", panel="#dff3e6", accent="#0b7a43",
            on_accent="#ffffff", line="#b5dcc4", radius=14, space=16,
        ),
        "terminal": SiteTheme(
            size=15, family=_MONO, ink="#202020", paper="#f4f1e6", panel="#e5dfc8", accent="#a0212f",
            on_accent="#ffffff", line="#c8bfa0", radius=0, space=12,
        ),
    },
}  # fmt: skip
"""Themes by name, split like LAYOUTS."""


TINY_LAYOUTS: dict[Split, tuple[str, ...]] = {
    "train": ("scatter", "grid", "row"),
    "held-out": ("ring", "column"),
}
"""Layouts of the tiny family: where shapes may stand."""
TINY_THEMES: dict[Split, tuple[str, ...]] = {"train": ("light", "sand"), "held-out": ("mist",)}
"""Themes of the tiny family: the background of the shapes."""


def layout_of(name: str) -> SiteLayout:
    return {**LAYOUTS["train"], **LAYOUTS["held-out"]}[name]


def theme_of(name: str) -> SiteTheme:
    return {**THEMES["train"], **THEMES["held-out"]}[name]


def style(theme: SiteTheme) -> str:
    values = {
        "size": f"{theme.size}px", "family": theme.family, "ink": theme.ink, "paper": theme.paper,
        "panel": theme.panel, "accent": theme.accent, "on-accent": theme.on_accent, "line": theme.line,
        "radius": f"{theme.radius}px", "space": f"{theme.space}px",
    }  # fmt: skip
    return ":root{" + "".join(f"--{name}:{value};" for name, value in values.items()) + "}"


def appearance_names(site: str, split: Split) -> tuple[list[str], list[str]]:
    """Lists the names of the layouts and of the themes of a split that a site can have."""
    if site == "tiny":
        return list(TINY_LAYOUTS[split]), list(TINY_THEMES[split])
    return list(LAYOUTS[split]), list(THEMES[split])
