"""When a page is at rest: the decision, by tables."""

import msgspec
import pytest

from orchard.schemas.gui import BrowserSettings, GuiWorld
from orchard.workers.domains.gui.browser import tools as t
from orchard.workers.domains.gui.browser.resting import Next, Polls, Signs, next_step, quiet_after
from orchard.workers.domains.gui.browser.world import quiet_of
from orchard.workers.domains.gui.sites.engine import open_site
from tests.gui_world import TINY


@pytest.mark.parametrize(
    ("now", "changed", "loaded", "under_way", "step", "seconds"),
    [
        (0.0, 0.0, 0.0, (), Next.WATCH, 3.0),
        (0.5, 0.5, 0.0, (), Next.WATCH, 2.5),
        (1.0, 0.0, 0.0, (), Next.REST, 0.0),
        (1.5, 0.8, 0.0, (), Next.WATCH, 1.5),
        (1.8, 0.8, 0.0, (), Next.REST, 0.0),
        # What is under way is waited for, however quiet the page is, but not for ever.
        (1.2, 0.1, 0.0, (0.1,), Next.LISTEN, 3.9),
        (4.0, 3.9, 0.0, (0.1, 3.9), Next.LISTEN, 1.1),
        (6.0, 0.1, 0.0, (0.1,), Next.GIVE_UP, 0.0),
        (6.0, 5.9, 0.0, (0.1, 5.9), Next.LISTEN, 4.0),
        # A page that goes on changing is no rest; what has loaded has the whole time again.
        (3.0, 2.9, 0.0, (), Next.GIVE_UP, 0.0),
        (3.0, 2.9, 2.9, (), Next.WATCH, 2.9),
        (9.5, 9.4, 9.4, (), Next.WATCH, 0.5),
        (10.0, 9.9, 9.9, (), Next.GIVE_UP, 0.0),
        (10.0, 9.9, 9.9, (9.9,), Next.GIVE_UP, 0.0),
    ],
)
def test_rest_is_a_time_without_any_sign_of_life(
    now: float, changed: float, loaded: float, under_way: tuple[float, ...], step: Next, seconds: float
) -> None:
    signs = Signs(began=0.0, changed=changed, loaded=loaded, under_way=under_way)
    found, left = next_step(signs, 1.0, now)
    assert found is step and left == pytest.approx(seconds)


def test_a_poll_is_what_is_asked_for_again_and_again_and_not_at_once() -> None:
    polls = Polls()
    asked = [
        ("/poll?t=1", 0.0, False),
        ("/items?page=1", 0.1, False),
        ("/items?page=2", 0.1, False),
        ("/items?page=3", 0.11, False),
        ("/poll?t=2", 0.4, False),
        ("/poll?t=3", 0.8, True),
        ("/poll?t=4", 0.9, True),
        ("/poll?t=5", 1.3, True),
        ("/else", 1.4, False),
    ]
    assert [(url, at, polls.hold(url, at)) for url, at, _ in asked] == asked


def test_input_needs_the_whole_quiet_and_a_look_at_another_tab_less() -> None:
    point = [1.0, 1.0]
    given: list[t.Action] = [
        t.Click(point_2d=point),
        t.Hover(point_2d=point),
        t.Drag(start_point_2d=point, end_point_2d=point),
        t.Write(message="x"),
        t.PressKeys(keys=["a"]),
        t.Scroll(),
        t.GotoUrl(url="x"),
        t.GoBack(),
    ]
    assert {quiet_after(each, 1.0) for each in given} == {1.0}
    less: list[t.Action] = [t.SwitchTab(tab_index=0), t.CloseTab(), t.NewTab(), t.WaitSeconds()]
    assert [quiet_after(each, 1.0) for each in less] == [0.3, 0.3, 0.06, 0.06]
    assert quiet_after(given[0], 0.0) == 0.06


def test_only_generated_sites_are_known_to_have_no_timers() -> None:
    world = GuiWorld(start_url="http://x.test/")
    own = GuiWorld(start_url="http://x.test/", browser=BrowserSettings(quiet=0.5))
    site = open_site(TINY)
    assert [quiet_of(each, at) for each in (world, own) for at in (None, site)] == [1.0, 0.06, 0.5, 0.5]


def test_a_world_without_the_setting_is_stored_as_before_there_was_one() -> None:
    world = msgspec.to_builtins(GuiWorld(start_url="http://x.test/"))
    assert set(world["browser"]) == {"width", "height", "last_k", "quality"}
    own = GuiWorld(start_url="http://x.test/", browser=BrowserSettings(quiet=0.5))
    assert msgspec.convert(msgspec.to_builtins(own), GuiWorld) == own
