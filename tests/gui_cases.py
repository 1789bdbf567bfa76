"""What each tool does to a real page: the page, the calls, the exact line of the last, and the effect."""

from dataclasses import dataclass, field
from typing import Any

ORIGIN = "http://hand.test"
NOTE = " Note: no visible navigation or new tab detected."
Call = tuple[str, dict[str, Any] | str]


@dataclass(frozen=True)
class Case:
    """One row. `effect` is evaluated in the active tab, and is `found` there."""

    name: str
    body: str
    calls: tuple[Call, ...]
    line: str
    effect: str = "true"
    found: Any = True
    tabs: int = 1
    tab: int = 0
    path: str = field(default="")
    """Of the case's page; made of its name."""
    seen: tuple[str, ...] = ()
    """In what the agent is shown after it."""
    bulk: bool = False
    """Whether only `make test-all` runs it."""

    @property
    def page(self) -> str:
        """The document."""
        return f"<!doctype html><title>{self.name}</title><body style='margin:0'>{self.body}"


def at(x: float, y: float) -> list[float]:
    """The point of a pixel."""
    return [x / 1.28, y]


def box(x: int, y: int, tag: str = "div", inside: str = "", more: str = "", size: str = "120px") -> str:
    """An element with its top left corner at a pixel, 30 pixels high."""
    style = f"position:absolute;left:{x}px;top:{y}px;width:{size};height:30px;box-sizing:border-box;margin:0"
    return f'<{tag} style="{style}" {more}>{inside}</{tag}>'


def click(x: float, y: float, **more: Any) -> Call:
    """A click on a pixel."""
    return ("click", {"point_2d": at(x, y), **more})


def keys(*names: str, **more: Any) -> Call:
    """Keys one after the other."""
    return ("press_keys", {"keys": list(names), **more})


COUNTED = 'onclick="window.count=(window.count||0)+1" ondblclick="window.twice=true"'
BUTTON = box(100, 100, "button", "Count it", COUNTED)
FIELD = box(100, 100, "input", more='placeholder="Your name" value="old"')
PICKED = "<select id=s style='position:absolute;left:100px;top:100px;height:30px;width:120px'>"
PICKED += "<option>Any</option><option>Red</option><option value=b>Blue</option></select>"
LONG = "<div style='height:5000px;width:4000px'>long</div>"
PANE = "<div id=pane style='position:absolute;left:100px;top:100px;width:200px;height:200px;overflow:auto'>"
PANE += "<div style='height:2000px'>inner</div></div>"
MENU = """<style>#menu{display:none}#over:hover #menu{display:block}</style>
<div id=over style="position:absolute;left:100px;top:100px;width:120px;background:#ccc">Menu
<a id=menu href="/next">Inside</a></div>"""
SLIDER = """<div id=knob style="position:absolute;left:100px;top:100px;width:30px;height:30px;background:red"></div>
<script>let on=false;knob.onmousedown=()=>{on=true};document.onmouseup=()=>{on=false};
document.onmousemove=(e)=>{if(on)knob.style.left=(e.clientX-15)+'px'}</script>"""
DND = """<div id=a draggable=true style="position:absolute;left:100px;top:100px;width:80px;height:40px">Card</div>
<div id=b style="position:absolute;left:400px;top:100px;width:200px;height:200px;background:#eee"></div>
<script>a.ondragstart=(e)=>e.dataTransfer.setData('text','card');b.ondragover=(e)=>e.preventDefault();
b.ondrop=(e)=>{e.preventDefault();b.dataset.got=e.dataTransfer.getData('text')}</script>"""
FRAMED = "<iframe style='position:absolute;left:100px;top:100px;width:300px;height:200px;border:0' srcdoc=\""
FRAMED += (
    "<body style='margin:0'><button style='width:100px;height:30px' onclick='parent.hit=1'>Inner</button>"
)
FRAMED += "<input style='position:absolute;top:50px;left:0;width:100px;height:30px' aria-label='In frame'>\"></iframe>"
OTHER_SITE = "<iframe style='position:absolute;left:100px;top:100px;width:300px;height:200px;border:0' "
OTHER_SITE += "src='http://other.test/framed'></iframe>"
SHADOW = """<div id=host style="position:absolute;left:100px;top:100px"></div><script>
const root=host.attachShadow({mode:'open'});
root.innerHTML='<button style="width:100px;height:30px">Shady</button>';
root.firstChild.onclick=()=>{window.hit=1}</script>"""
CLOSED = """<div id=host style="position:absolute;left:100px;top:100px"></div><script>
const root=host.attachShadow({mode:'closed'});
root.innerHTML='%s';window.inner=root.firstChild</script>"""
CLOSED_FIELD = CLOSED % '<input aria-label=Deep value=old style="width:100px;height:30px">'
CLOSED_LIST = CLOSED % "<select style=width:100px><option>Any</option><option>Red</option></select>"
LISTENING = "<canvas id=c %s style='position:absolute;left:100px;top:100px'></canvas><script>let said='';"
LISTENING += "%s.addEventListener('keydown',(e)=>{if(e.key.length===1)said+=e.key});</script>"
PAINTED = LISTENING % ("tabindex=0", "c")
PAGE_LISTENS = LISTENING % ("", "window")
PAINTED_FRAME = OTHER_SITE.replace("framed", "write%20to%20the%20page")

POINTING = (
    Case("button", BUTTON, (click(130, 110),), f'Succeed: `click` on <button> type=submit "Count it" at (130, 110) executed.{NOTE}', "count", 1),
    Case("double", BUTTON, (click(130, 110, clicks=2),), f'Succeed: `click` on <button> type=submit "Count it" at (130, 110) executed.{NOTE}', "twice && count", 2),
    Case("right", box(100, 100, inside="Here", more='oncontextmenu="window.hit=event.button"'), (click(130, 110, button="right"),), f'Succeed: `click` on <div> "Here" at (130, 110) executed.{NOTE}', "hit", 2),
    Case("middle", box(100, 100, inside="Here", more='onauxclick="window.hit=event.button"'), (click(130, 110, button="middle"),), f'Succeed: `click` on <div> "Here" at (130, 110) executed.{NOTE}', "hit", 1, bulk=True),
    Case("link", box(100, 100, "a", "Next", 'href="/next"'), (click(110, 110),), f'Succeed: `click` on <a> "Next" at (110, 110) executed. Page navigated to {ORIGIN}/next.', "document.title", "Next"),
    Case("hash link", box(100, 100, "a", "Part", 'href="#part"'), (click(110, 110),), f'Succeed: `click` on <a> "Part" at (110, 110) executed. Page navigated to {ORIGIN}/hash%20link#part.', "location.hash", "#part", bulk=True),
    Case("own address", box(100, 100, "a", "Again", 'href=""'), (click(110, 110),), f'Succeed: `click` on <a> "Again" at (110, 110) executed.{NOTE}', "document.title", "own address"),
    Case("pushed", box(100, 100, "button", "Push", "onclick=\"history.pushState({},'','/pushed/2')\""), (click(130, 110),), f'Succeed: `click` on <button> type=submit "Push" at (130, 110) executed. Page navigated to {ORIGIN}/pushed/2.'),
    Case("script link", box(100, 100, "button", "Go", "onclick=\"location.href='/next'\""), (click(130, 110),), f'Succeed: `click` on <button> type=submit "Go" at (130, 110) executed. Page navigated to {ORIGIN}/next.', "document.title", "Next", bulk=True),
    Case("long label", box(100, 100, "span", "Washable Large Dog Bed with Raised Sides"), (click(110, 110),), f'Succeed: `click` on <span> "Washable Large Dog Bed with Ra..." at (110, 110) executed.{NOTE}'),
    Case("exact label", box(100, 100, "span", "a" * 30), (click(110, 110),), f'Succeed: `click` on <span> "{"a" * 30}" at (110, 110) executed.{NOTE}', bulk=True),
    Case("no label", box(100, 100, "i"), (click(110, 110),), f"Succeed: `click` on <i> at (110, 110) executed.{NOTE}"),
    Case("role", box(100, 100, "input", more='type=text role=searchbox aria-label="Search here"'), (click(110, 110),), f'Succeed: `click` on <input> type=text role=searchbox "Search here" at (110, 110) executed.{NOTE}', "document.activeElement.tagName", "INPUT"),
    Case("submit value", box(100, 100, "input", more='type=submit value="Send"'), (click(110, 110),), f'Succeed: `click` on <input> type=submit "Send" at (110, 110) executed.{NOTE}', bulk=True),
    Case("picture", box(100, 100, "img", more='alt="A red shoe" src="data:image/gif;base64,R0lGODlhAQABAAAAACw="'), (click(110, 110),), f'Succeed: `click` on <img> "A red shoe" at (110, 110) executed.{NOTE}', bulk=True),
    Case("checkbox", box(100, 100, "input", more='type=checkbox id=c aria-label="Washable"', size="30px"), (click(115, 115),), f'Succeed: `click` on <input> type=checkbox checked=false "Washable" at (115, 115) executed.{NOTE}', "c.checked", True),
    Case("checked box", box(100, 100, "input", more='type=checkbox id=c checked', size="30px"), (click(115, 115),), f"Succeed: `click` on <input> type=checkbox checked=true at (115, 115) executed.{NOTE}", "c.checked", False, bulk=True),
    Case("label of box", "<label style='position:absolute;left:100px;top:100px'><input type=checkbox id=c>Large</label>", (click(130, 110),), f'Succeed: `click` on <label> "Large" at (130, 110) executed.{NOTE}', "c.checked", True, bulk=True),
    Case("radio", box(100, 100, "input", more='type=radio name=r id=r1', size="30px") + box(200, 100, "input", more='type=radio name=r id=r2 checked', size="30px"), (click(115, 115),), f"Succeed: `click` on <input> type=radio checked=false at (115, 115) executed.{NOTE}", "r1.checked && !r2.checked"),
    Case("toggle", box(100, 100, inside="Dark", more='role=switch aria-checked=true'), (click(110, 110),), f'Succeed: `click` on <div> role=switch checked=true "Dark" at (110, 110) executed.{NOTE}', bulk=True),
    Case("disabled", box(100, 100, "button", "Off", "disabled onclick='window.hit=1'"), (click(110, 110),), f'Succeed: `click` on <button> type=submit "Off" at (110, 110) executed.{NOTE}', "window.hit === undefined", bulk=True),
    Case("nothing", "", (click(640, 500),), f"Succeed: `click` on <html> at (640, 500) executed.{NOTE}"),
    Case("last pixel", "<div style='width:100vw;height:100vh' onclick='window.hit=[event.clientX,event.clientY]'></div>", (("click", {"point_2d": [1000, 1000]}),), f"Succeed: `click` on <div> at (1279, 999) executed.{NOTE}", "hit", [1279, 999]),
    Case("first pixel", "<div style='width:100vw;height:100vh' onclick='window.hit=[event.clientX,event.clientY]'></div>", (("click", {"point_2d": [0, 0]}),), f"Succeed: `click` on <div> at (0, 0) executed.{NOTE}", "hit", [0, 0], bulk=True),
    Case("too far", "", (("click", {"point_2d": [1000.5, 20]}),), "Failed: `click`: the point [1000.5, 20] is not on the screen: coordinates go from 0 to 1000."),
    Case("negative", "", (("hover", {"point_2d": [5, -1]}),), "Failed: `hover`: the point [5, -1] is not on the screen: coordinates go from 0 to 1000.", bulk=True),
    Case("drag too far", "", (("drag", {"start_point_2d": [5, 5], "end_point_2d": [5, 1001]}),), "Failed: `drag`: the point [5, 1001] is not on the screen: coordinates go from 0 to 1000.", bulk=True),
    Case("scrolled to", f"<div style='height:3000px'></div>{BUTTON.replace('top:100px', 'top:2000px')}", (("scroll", {"amount": 1.0}), ("scroll", {"amount": 1.0}), click(130, 10)), f'Succeed: `click` on <button> type=submit "Count it" at (130, 10) executed.{NOTE}', "count", 1),
    Case("hover menu", MENU, (("hover", {"point_2d": at(130, 108)}),), f'Succeed: `hover` on <div> "Menu" at (130, 108) executed.{NOTE}', "getComputedStyle(menu).display", "block"),
    Case("into hover menu", MENU, (("hover", {"point_2d": at(130, 108)}), click(120, 128)), f'Succeed: `click` on <a> "Inside" at (120, 128) executed. Page navigated to {ORIGIN}/next.'),
    Case("drag a knob", SLIDER, (("drag", {"start_point_2d": at(115, 115), "end_point_2d": at(515, 115)}),), f"Succeed: `drag` on <div> from (115, 115) to (515, 115) executed.{NOTE}", "knob.style.left", "500px"),
    Case("drag and drop", DND, (("drag", {"start_point_2d": at(120, 120), "end_point_2d": at(500, 200), "steps": 5}),), f'Succeed: `drag` on <div> "Card" from (120, 120) to (500, 200) executed.{NOTE}', "b.dataset.got", "card"),
    Case("range", box(100, 100, "input", more='type=range id=r min=0 max=100 value=0', size="400px"), (("drag", {"start_point_2d": at(108, 115), "end_point_2d": at(300, 115)}),), f"Succeed: `drag` on <input> type=range from (108, 115) to (300, 115) executed.{NOTE}", "r.value > 40 && r.value < 60", bulk=True),
    Case("frame", FRAMED, (click(150, 115),), f'Succeed: `click` on <button> type=submit "Inner" at (150, 115) executed.{NOTE}', "hit", 1),
    Case("write in frame", FRAMED, (click(150, 165), ("write", {"message": "x y"})), 'Succeed: `write` typed "x y" into <input> type=text "In frame".', "frames[0].document.querySelector('input').value", "x y", bulk=True),
    Case("frame of another site", OTHER_SITE, (click(150, 115),), f'Succeed: `click` on <button> type=submit "Foreign" at (150, 115) executed.{NOTE}'),
    Case("write in another site", OTHER_SITE, (click(150, 165), ("write", {"message": "abc"})), 'Succeed: `write` typed "abc" into <input> type=text "Foreign field".'),
    Case("shadow", SHADOW, (click(120, 115),), f'Succeed: `click` on <button> type=submit "Shady" at (120, 115) executed.{NOTE}', "hit", 1),
)  # fmt: skip

WRITING = (
    Case("write", FIELD, (click(120, 110), ("write", {"message": "Ada"})), 'Succeed: `write` typed "Ada" into <input> type=text "Your name".', "document.activeElement.value", "Ada"),
    Case("write nothing", FIELD, (click(120, 110), ("write", {"message": ""})), 'Succeed: `write` typed "" into <input> type=text "Your name".', "document.activeElement.value", "", bulk=True),
    Case("write unfocused", FIELD, (("write", {"message": "Ada"}),), "Failed: `write`: no input field has the focus; click on one first.", "document.querySelector('input').value", "old"),
    Case("write readonly", box(100, 100, "input", more="readonly value=old"), (click(120, 110), ("write", {"message": "Ada"})), "Failed: `write`: no input field has the focus; click on one first.", "document.querySelector('input').value", "old", bulk=True),
    Case("write a text", box(100, 100, "textarea", "old\ntext"), (click(120, 110), ("write", {"message": "one\ntwo"})), 'Succeed: `write` typed "one two" into <textarea>.', "document.activeElement.value", "one\ntwo"),
    Case("write rich", box(100, 100, inside="old", more="contenteditable id=e"), (click(120, 110), ("write", {"message": "new"})), 'Succeed: `write` typed "new" into <div> "old".', "e.innerText", "new", bulk=True),
    Case("write long", box(100, 100, "textarea"), (click(120, 110), ("write", {"message": "x" * 600})), f'Succeed: `write` typed "{"x" * 500}..." into <textarea>.', "document.activeElement.value.length", 600, bulk=True),
    Case("write letters", box(100, 100, "input"), (click(120, 110), ("write", {"message": "Zoë 東京 €5"})), 'Succeed: `write` typed "Zoë 東京 €5" into <input> type=text.', "document.activeElement.value", "Zoë 東京 €5"),
    Case("write a date", box(100, 100, "input", more="type=date"), (click(120, 110), ("write", {"message": "2026-11-30"})), 'Succeed: `write` typed "2026-11-30" into <input> type=date.', "document.activeElement.value", "2026-11-30"),
    Case("write a bad date", box(100, 100, "input", more="type=date value=2026-01-02"), (click(120, 110), ("write", {"message": "tomorrow"})), "Failed: `write`: the field does not take 'tomorrow'.", "document.activeElement.value", "2026-01-02", bulk=True),
    Case("write an option", PICKED, (keys("Tab"), ("write", {"message": "blue"})), 'Succeed: `write` typed "blue" into <select>.', "s.value", "b"),
    Case("write no option", PICKED, (keys("Tab"), ("write", {"message": "Green"})), "Failed: `write`: the list has no option 'Green'; it has: Any, Red, Blue.", "s.value", "Any", bulk=True),
    Case("write into an open list", PICKED, (click(150, 115), ("write", {"message": "blue"})), 'Succeed: `write` typed "blue" into <select>.', "[s.value, s.matches(':open')]", ["b", False]),
    Case("write in a closed shadow", CLOSED_FIELD, (click(130, 115), ("write", {"message": "new"})), 'Succeed: `write` typed "new" into <input> type=text "Deep".', "inner.value", "new"),
    Case("write in a closed list", CLOSED_LIST, (keys("Tab"), ("write", {"message": "red"})), 'Succeed: `write` typed "red" into <select>.', "inner.value", "Red"),
    Case("write on a canvas", PAINTED, (click(130, 115), ("write", {"message": "a b"})), 'Succeed: `write` typed "a b" into <canvas>.', "said", "a b"),
    Case("write to the page", PAGE_LISTENS, (click(130, 115), ("write", {"message": "crane"})), 'Succeed: `write` typed "crane" into <body>.', "said", "crane"),
    Case("write to another site's page", PAINTED_FRAME, (click(230, 215), ("write", {"message": "crane"})), 'Succeed: `write` typed "crane" into <body>.'),
    Case("write where nothing listens", box(100, 100, inside="Pane", more="tabindex=0"), (click(130, 115), ("write", {"message": "x"})), "Failed: `write`: no input field has the focus; click on one first."),
    Case("write on a button", box(100, 100, "button", "Go", "onclick='window.hit=(window.hit||0)+1' onkeydown='1'"), (click(130, 115), ("write", {"message": "a b"})), "Failed: `write`: no input field has the focus; click on one first.", "hit", 1, bulk=True),
    Case("write a number", box(100, 100, "input", more="type=number value=3"), (click(120, 110), ("write", {"message": "12.5"})), 'Succeed: `write` typed "12.5" into <input> type=number.', "document.activeElement.value", "12.5", bulk=True),
    Case("open a list", PICKED, (click(150, 115), click(150, 178)), f'Succeed: `click` on <option> "Red" at (150, 178) executed.{NOTE}', "s.value", "Red"),
    Case("list by keys", PICKED, (keys("Tab", "Space"), keys("ArrowDown", presses=2), keys("Enter")), f"Succeed: `press_keys` Enter executed.{NOTE}", "s.value", "b", bulk=True),
    Case("enter", f"<form action=/next>{FIELD}</form>", (click(120, 110), keys("Enter")), f"Succeed: `press_keys` Enter executed. Page navigated to {ORIGIN}/next?.", "document.title", "Next"),
    Case("keys", box(100, 100, "input"), (click(120, 110), keys("a", "B", "5", "Space", "Backspace")), f"Succeed: `press_keys` a, B, 5, Space, Backspace executed.{NOTE}", "document.activeElement.value", "aB5"),
    Case("hotkey", FIELD, (click(120, 110), keys("Ctrl", "a", is_hotkey=True), keys("Delete")), f"Succeed: `press_keys` Delete executed.{NOTE}", "document.activeElement.value", ""),
    Case("function key", "<script>onkeydown=(e)=>{window.hit=e.key}</script>", (keys("F2"),), f"Succeed: `press_keys` F2 executed.{NOTE}", "hit", "F2", bulk=True),
    Case("no such key", "", (keys("Enter", "Hyper"),), "Failed: `press_keys`: there is no key 'Hyper'."),
    Case("tab through", FIELD + BUTTON.replace("top:100px", "top:200px"), (keys("Tab", presses=2), keys("Enter")), f"Succeed: `press_keys` Enter executed.{NOTE}", "count", 1, bulk=True),
)  # fmt: skip

MOVING = (
    Case("scroll", LONG, (("scroll", {"direction": "down", "amount": 0.5}),), f"Succeed: `scroll` down by 0.5 executed.{NOTE}", "scrollY", 500),
    Case("scroll by default", LONG, (("scroll", {}),), f"Succeed: `scroll` down by 0.5 executed.{NOTE}", "scrollY", 500, bulk=True),
    Case("scroll up", LONG, (("scroll", {"amount": 1}), ("scroll", {"direction": "up", "amount": 0.25})), f"Succeed: `scroll` up by 0.25 executed.{NOTE}", "scrollY", 750),
    Case("scroll right", LONG, (("scroll", {"direction": "right", "amount": 0.3}),), f"Succeed: `scroll` right by 0.3 executed.{NOTE}", "scrollX", 300, bulk=True),
    Case("scroll a pane", PANE + LONG, (("scroll", {"direction": "down", "amount": 0.2, "point_2d": at(150, 150)}),), f'Succeed: `scroll` down by 0.2 on <div> "inner" at (150, 150) executed.{NOTE}', "[pane.scrollTop, scrollY]", [200, 0]),
    Case("scroll the only pane", "<div id=pane style='position:fixed;inset:0;overflow:auto'><div style='height:4000px'>x</div></div>", (("scroll", {}),), f"Succeed: `scroll` down by 0.5 executed.{NOTE}", "pane.scrollTop", 500, bulk=True),
    Case("scroll too much", LONG, (("scroll", {"amount": 3}),), "Failed: `scroll`: the arguments do not fit: Expected `float` <= 1.0 - at `$.amount`.", "scrollY", 0),
    Case("goto", "", (("goto_url", {"url": f"{ORIGIN}/next"}),), f"Succeed: `goto_url` {ORIGIN}/next executed. Page navigated to {ORIGIN}/next.", "document.title", "Next"),
    Case("goto without scheme", "", (("goto_url", {"url": "hand.test/next"}),), f"Succeed: `goto_url` {ORIGIN}/next executed. Page navigated to {ORIGIN}/next.", "document.title", "Next", bulk=True),
    Case("goto redirect", "", (("goto_url", {"url": f"{ORIGIN}/moved"}),), f"Succeed: `goto_url` {ORIGIN}/moved executed. Page navigated to {ORIGIN}/next.", bulk=True),
    Case("goto nowhere", "", (("goto_url", {"url": "http://nowhere.example/"}),), "Failed: `goto_url`: net::ERR_NAME_NOT_RESOLVED at http://nowhere.example/."),
    Case("goto a file", "", (("goto_url", {"url": "file:///etc/passwd"}),), "Failed: `goto_url`: file:///etc/passwd is not opened: only http and https addresses are.", "document.title", "goto a file"),
    Case("goto a slow page", "", (("goto_url", {"url": f"{ORIGIN}/slow"}),), f"Succeed: `goto_url` {ORIGIN}/slow executed. Page navigated to {ORIGIN}/slow.", "document.title", "Slow"),
    Case("slow by click", box(100, 100, "a", "Slow", 'href="/slow"'), (click(110, 110),), f'Succeed: `click` on <a> "Slow" at (110, 110) executed. Page navigated to {ORIGIN}/slow.', "document.title", "Slow"),
    Case("slow data", box(100, 100, "button", "Load", "onclick=\"fetch('/slow').then(()=>{document.title='loaded'})\""), (click(110, 110),), f'Succeed: `click` on <button> type=submit "Load" at (110, 110) executed.{NOTE}', "document.title", "loaded"),
    Case("goto a download", "", (("goto_url", {"url": f"{ORIGIN}/file"}),), f"Failed: `goto_url`: {ORIGIN}/file is a file to download, which is not allowed here.", "document.title", "goto a download"),
    Case("click a download", box(100, 100, "a", "Get", 'href="/file"'), (click(110, 110),), f'Succeed: `click` on <a> "Get" at (110, 110) executed.{NOTE}', "document.title", "click a download"),
    Case("back", box(100, 100, "a", "Next", 'href="/next"'), (click(110, 110), ("go_back", {})), f"Succeed: `go_back` executed. Page navigated to {ORIGIN}/back.", "document.title", "back"),
    Case("back at the start", "", (("go_back", {}), ("go_back", {})), "Failed: `go_back`: there is no page before this one in this tab.", bulk=True),
    Case("wait", "<script>setTimeout(()=>{document.title='later'},300)</script>", (("wait", {"seconds": 1}),), f"Succeed: `wait` for 1 seconds executed.{NOTE}", "document.title", "later"),
    Case("wait too long", "", (("wait", {"seconds": 1000}),), "Failed: `wait`: the arguments do not fit: Expected `int` <= 60 - at `$.seconds`.", bulk=True),
)  # fmt: skip

TABS = (
    Case("new tab", "", (("new_tab", {}),), "Succeed: `new_tab` executed. New tab opened (tab 1).", "location.href", "about:blank", tabs=2, tab=1),
    Case("link to a tab", box(100, 100, "a", "Next", 'href="/next" target=_blank'), (click(110, 110),), 'Succeed: `click` on <a> "Next" at (110, 110) executed. New tab opened (tab 1).', "document.title", "Next", tabs=2, tab=1, seen=("- Tab 1 (active): http://hand.test/next - Next", "Current tab: 1")),
    Case("window", box(100, 100, "button", "Open", "onclick=\"window.open('/next')\""), (click(110, 110),), 'Succeed: `click` on <button> type=submit "Open" at (110, 110) executed. New tab opened (tab 1).', "document.title", "Next", tabs=2, tab=1),
    Case("middle click", box(100, 100, "a", "Next", 'href="/next"'), (click(110, 110, button="middle"),), 'Succeed: `click` on <a> "Next" at (110, 110) executed. New tab opened (tab 1).', "document.title", "Next", tabs=2, tab=1, bulk=True),
    Case("switch", "", (("new_tab", {}), ("switch_tab", {"tab_index": 0})), f"Succeed: `switch_tab` to tab 0 executed.{NOTE}", "document.title", "switch", tabs=2),
    Case("switch too far", "", (("switch_tab", {"tab_index": 3}),), "Failed: `switch_tab`: there is no tab 3; tabs are 0 to 0."),
    Case("close", "", (("new_tab", {}), ("close_tab", {})), f"Succeed: `close_tab` of tab 1 executed; tab 0 is active.{NOTE}", "document.title", "close"),
    Case("close the first", "", (("new_tab", {}), ("switch_tab", {"tab_index": 0}), ("close_tab", {})), f"Succeed: `close_tab` of tab 0 executed; tab 0 is active.{NOTE}", "location.href", "about:blank", bulk=True),
    Case("close the only", "", (("close_tab", {}),), "Failed: `close_tab`: it is the only tab."),
    Case("closes itself", box(100, 100, "a", "Self", 'href="/closing" target=_blank rel=opener'), (click(110, 110), click(130, 110)), f'Succeed: `click` on <button> type=submit "Close" at (130, 110) executed.{NOTE}', "document.title", "closes itself", bulk=True),
    Case("goto in a tab", "", (("new_tab", {}), ("goto_url", {"url": f"{ORIGIN}/next"})), f"Succeed: `goto_url` {ORIGIN}/next executed. Page navigated to {ORIGIN}/next.", "document.title", "Next", tabs=2, tab=1, bulk=True),
)  # fmt: skip

DIALOGS = (
    Case("alert", box(100, 100, "button", "Tell", "onclick=\"alert('Saved.');window.hit=1\""), (click(110, 110),), f'Succeed: `click` on <button> type=submit "Tell" at (110, 110) executed.{NOTE}', "hit", 1, seen=("Dialog accepted: alert 'Saved.'",)),
    Case("confirm", box(100, 100, "button", "Ask", "onclick=\"window.hit=confirm('Delete?')\""), (click(110, 110),), f'Succeed: `click` on <button> type=submit "Ask" at (110, 110) executed.{NOTE}', "hit", True, seen=("Dialog accepted: confirm 'Delete?'",)),
    Case("prompt", box(100, 100, "button", "Ask", "onclick=\"window.hit=prompt('Name?','Ada')\""), (click(110, 110),), f'Succeed: `click` on <button> type=submit "Ask" at (110, 110) executed.{NOTE}', "hit", "Ada", bulk=True),
    Case("leave", box(100, 100, "a", "Next", 'href="/next"') + "<script>onbeforeunload=(e)=>{e.preventDefault();return 'x'}</script>", (click(500, 500), click(110, 110)), f'Succeed: `click` on <a> "Next" at (110, 110) executed. Page navigated to {ORIGIN}/next.', "document.title", "Next", bulk=True),
)  # fmt: skip

SAYING = (
    Case("unknown tool", "", (("type_text", {"text": "x"}),), "Error: Action type_text is not supported by the environment!"),
    Case("missing argument", "", (("click", {}),), "Failed: `click`: the arguments do not fit: Object missing required field `point_2d`."),
    Case("one coordinate", "", (("click", {"point_2d": [5]}),), "Failed: `click`: the arguments do not fit: Expected `array` of length >= 2 - at `$.point_2d`.", bulk=True),
    Case("numbers as text", BUTTON, (("click", {"point_2d": [str(130 / 1.28), "110"]}),), f'Succeed: `click` on <button> type=submit "Count it" at (130, 110) executed.{NOTE}', "count", 1, bulk=True),
    Case("bad button", "", (click(5, 5, button="fourth"),), "Failed: `click`: the arguments do not fit: Invalid enum value 'fourth' - at `$.button`.", bulk=True),
)  # fmt: skip

CASES = (*POINTING, *WRITING, *MOVING, *TABS, *DIALOGS, *SAYING)
PAPER = (
    ([501, 213], "(641, 213)"),
    ([385, 31], "(493, 31)"),
    ([649, 31], "(831, 31)"),
    ([27, 509], "(35, 509)"),
    ([496, 514], "(635, 514)"),
)
"""The five points of the paper's appendix D, and the pixels that it says they are."""
