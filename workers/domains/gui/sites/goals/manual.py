"""Tasks on the site `manual`."""

import random

from orchard.schemas.gui import ExpectedAnswer
from orchard.workers.domains.gui.sites.manual import Article, ManualSite, Setting
from orchard.workers.domains.gui.sites.solving import (
    Goal,
    Maker,
    Scene,
    SolutionStep,
    View,
    click,
    done,
    fill,
    pick,
    scene,
)


def _found(article: Article, text: str, *steps: SolutionStep) -> tuple[Scene, ...]:
    """Leads from any page to an article by searching, with the steps there."""
    on_page = f"page:{article.slug}"
    return (
        scene(on_page, *steps),
        scene("results:*", click(on_page, unless=lambda view: view.find(on_page) is None), click("next")),
        scene("*", fill("q", text, enter=True)),
    )


def _listed(article: Article, *steps: SolutionStep) -> tuple[Scene, ...]:
    """Leads from any page to an article by its chapter, with the steps there."""
    return (
        scene(f"page:{article.slug}", *steps),
        scene(f"chapter:{article.chapter}", click(f"page:{article.slug}")),
        scene("*", click(f"chapter:{article.chapter}")),
    )


def _drawn(manual: ManualSite, dice: random.Random) -> tuple[Article, Setting]:
    article = dice.choice(manual.articles)
    return article, dice.choice(article.settings)


def default(manual: ManualSite, dice: random.Random) -> Goal:
    article, setting = _drawn(manual, dice)
    others = tuple(str(each.default) for each in article.settings if each.default != setting.default)
    return Goal(
        statement=f"What is the default of the setting {setting.name}? Answer with the number alone.",
        records=manual.records(),
        answer=ExpectedAnswer(value=str(setting.default), others=others),
        scenes=_found(article, setting.name, done(str(setting.default))),
    )


def since(manual: ManualSite, dice: random.Random) -> Goal:
    article, setting = _drawn(manual, dice)
    others = tuple(each.since for each in article.settings if each.since != setting.since)
    return Goal(
        statement=(
            f"Since which version is there the setting {setting.name}, on the page {article.title} of the "
            f"chapter {article.chapter}? Answer with the version alone."
        ),
        records=manual.records(),
        answer=ExpectedAnswer(value=setting.since, others=others),
        scenes=_listed(article, done(setting.since)),
    )


def helpful(manual: ManualSite, dice: random.Random) -> Goal:
    article, said = dice.choice(manual.articles), dice.choice(("yes", "no"))
    manual.feedback[article.title] = said

    def given(view: View) -> bool:
        return bool(view.records.get("feedback", {}).get(article.title) == said)

    return Goal(
        statement=(
            f"Say that the page {article.title} of the chapter {article.chapter} was "
            f"{'helpful' if said == 'yes' else 'not helpful'}."
        ),
        records=manual.records(),
        scenes=_listed(article, click(f"helpful:{said}", unless=given), done("I said so.")),
    )


def report(manual: ManualSite, dice: random.Random) -> Goal:
    article, setting = _drawn(manual, dice)
    kind = dice.choice(("error", "wish"))
    text = f"Please {'correct' if kind == 'error' else 'explain'} {setting.name}"
    manual.reports.append({"page": article.title, "kind": kind, "text": text})

    def sent(view: View) -> bool:
        return manual.reports[-1] in view.records.get("reports", [])

    named = "an error" if kind == "error" else "a wish"
    return Goal(
        statement=(
            f'On the page that describes the setting {setting.name}, report {named} with the text "{text}".'
        ),
        records=manual.records(),
        scenes=(
            scene(f"report:{article.slug}", pick(f"kind:{kind}"), fill("text", text), click("send")),
            *_found(article, setting.name, click("report", unless=sent), done("It is reported.")),
        ),
    )


MAKERS: dict[str, Maker] = {"default": default, "since": since, "helpful": helpful, "report": report}
