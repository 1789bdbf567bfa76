"""JavaScript that is evaluated in pages. Pages are hostile: no result is trusted to have its type or an
end."""

LABEL = 30
"""Maximum characters of an element's label; a longer one ends with three dots."""

_DESCRIBE = """
const described = (element) => {
  if (!element) return null;
  const tag = element.tagName.toLowerCase();
  const cut = (text) => {
    const line = String(text || '').replace(/\\s+/g, ' ').trim();
    const letters = Array.from(line);
    return letters.length > LIMIT ? letters.slice(0, LIMIT).join('') + '...' : line;
  };
  const field = ['input', 'textarea', 'select'].includes(tag);
  const kind = ['input', 'button'].includes(tag) ? element.type : element.getAttribute('type');
  const pressed = ['submit', 'button', 'reset'].includes(kind) && tag === 'input';
  const label = [
    element.getAttribute('aria-label'),
    pressed ? element.value : '',
    element.getAttribute('placeholder'),
    field && element.labels && element.labels.length ? element.labels[0].innerText : '',
    field || ['html', 'body', 'iframe'].includes(tag) ? '' : element.innerText || element.textContent,
    element.getAttribute('alt'),
    element.getAttribute('title'),
  ].map(cut).find((text) => text) || '';
  let checked = null;
  if (tag === 'input' && ['checkbox', 'radio'].includes(kind)) checked = String(element.checked);
  else if (element.hasAttribute('aria-checked')) checked = element.getAttribute('aria-checked');
  const short = (text) => (text ? String(text).slice(0, 40) : '');
  return [tag, short(kind), short(element.getAttribute('role')), short(checked), label];
};
""".replace("LIMIT", str(LABEL))

AT_POINT = f"""([x, y]) => {{
  {_DESCRIBE}
  let root = document, element = null;
  for (;;) {{
    const found = root.elementFromPoint(x, y);
    if (!found || found === element) break;
    element = found;
    if (element.shadowRoot) {{ root = element.shadowRoot; continue; }}
    if (element.tagName !== 'IFRAME') break;
    const box = element.getBoundingClientRect();
    const [left, top] = [box.left + element.clientLeft, box.top + element.clientTop];
    let inner = null;
    try {{ inner = element.contentDocument; }} catch (error) {{}}
    if (!inner) return {{ element: described(element), frame: [x - left, y - top] }};
    [x, y, root] = [x - left, y - top, inner];
  }}
  return {{ element: described(element), frame: null }};
}}"""
"""Describes the innermost element at a point, and gives the point's position inside a frame that scripts
cannot enter."""

INNERMOST = """() => {
  let element = document.activeElement || document.body;
  for (;;) {
    let inner = null;
    if (element && element.shadowRoot) inner = element.shadowRoot.activeElement;
    else if (element && element.tagName === 'IFRAME') {
      try {
        const within = element.contentDocument;
        inner = within && (within.activeElement || within.body);
      } catch (error) {}
    }
    if (!inner) return element;
    element = inner;
  }
}"""
"""Returns the focused element, as far as scripts can see."""

TAKES = f"""(element) => {{
  {_DESCRIBE}
  const list = element.closest('select');
  if (list) element = list;
  const plain = ['checkbox', 'radio', 'button', 'submit', 'reset', 'file', 'image', 'hidden'];
  const pickers = ['date', 'time', 'month', 'week', 'datetime-local', 'color', 'range'];
  const tag = element.tagName;
  let way = 'keys';
  if (tag === 'SELECT') way = 'choose';
  else if (tag === 'INPUT' && pickers.includes(element.type)) way = 'give';
  else if (tag === 'INPUT') way = plain.includes(element.type) ? '' : 'type';
  else if (tag === 'TEXTAREA' || element.isContentEditable) way = 'type';
  else if (element.ownerDocument.designMode === 'on') way = 'type';
  else if (['BUTTON', 'SUMMARY'].includes(tag)) way = '';
  if (element.disabled || element.readOnly) way = '';
  const opened = tag === 'SELECT' && element.matches(':open');
  return {{ element: described(element), way, opened }};
}}"""
"""Tells how text is entered into an element (`type`, `give`, `choose`, `keys`, or nothing), and whether it is
an open drop-down list."""

LISTENS = """(element, listeners) => {
  const kinds = ['keydown', 'keypress', 'keyup', 'beforeinput', 'input', 'textInput'];
  const hears = (each) => kinds.some((kind) => kind in listeners(each));
  for (let each = element; each; each = each.parentNode || each.host) if (hears(each)) return true;
  return hears(element.ownerDocument.defaultView);
}"""
"""Whether an element or its ancestors listen for keys. `listeners` is the debugger's function."""

GIVE = """(element, text) => {
  element = element.closest('select') || element;
  const before = element.value;
  if (element.tagName === 'SELECT') {
    const plain = (text) => text.replace(/\\s+/g, ' ').trim().toLowerCase();
    const options = Array.from(element.options);
    const found = ['text', 'label', 'value']
      .map((name) => options.find((option) => plain(option[name]) === plain(text))).find((option) => option);
    if (!found || found.disabled) return options.slice(0, 20).map((option) => option.text);
    element.value = found.value;
    found.selected = true;
  } else {
    const proto = element.ownerDocument.defaultView.HTMLInputElement.prototype;
    Object.getOwnPropertyDescriptor(proto, 'value').set.call(element, text.trim());
    if (element.value !== text.trim()) { element.value = before; return []; }
  }
  element.dispatchEvent(new Event('input', { bubbles: true, composed: true }));
  element.dispatchEvent(new Event('change', { bubbles: true }));
  return null;
}"""
"""Gives a field a value as its own picker would. Returns the options, or an empty list, if it rejects the
value."""

SCROLL = """([dx, dy]) => {
  const page = document.scrollingElement;
  if (!page) return false;
  const before = [page.scrollLeft, page.scrollTop];
  const room = dy ? page.scrollHeight > page.clientHeight : page.scrollWidth > page.clientWidth;
  page.scrollBy({ left: dx, top: dy, behavior: 'instant' });
  return room || before[0] !== page.scrollLeft || before[1] !== page.scrollTop;
}"""
"""Scrolls the page; returns false if the page is no longer than the screen."""

FRAMES = """() => new Promise((resolve) => {
  requestAnimationFrame(() => requestAnimationFrame(() => resolve(true)));
  setTimeout(() => resolve(true), 100);
})"""
"""Waits for two animation frames, so that an event's effects have begun; at most 0.1 s, because hidden pages
have no frames."""

CALM = """([first, quiet, longest]) => new Promise((resolve) => {
  let timer = 0;
  const moving = () => document.getAnimations().some((each) => {
    const timing = each.effect && each.effect.getComputedTiming();
    return each.playState === 'running' && timing && timing.endTime !== Infinity;
  });
  const end = (calm) => { watcher.disconnect(); resolve(calm); };
  const wait = (milliseconds) => {
    clearTimeout(timer);
    timer = setTimeout(() => (moving() ? wait(quiet) : end(true)), milliseconds);
  };
  const watched = { subtree: true, childList: true, attributes: true, characterData: true };
  const watch = (root) => {
    watcher.observe(root, watched);
    for (const each of root.querySelectorAll('*')) if (each.shadowRoot) watch(each.shadowRoot);
  };
  const watcher = new MutationObserver((changes) => {
    wait(quiet);
    for (const change of changes) for (const node of change.addedNodes) {
      if (node.shadowRoot) watch(node.shadowRoot);
    }
  });
  watch(document);
  setTimeout(() => end(false), longest);
  wait(first);
})"""
"""Waits until a frame has not changed for `first` milliseconds, or `quiet` after a change, and no finite
animation runs; returns false if that takes `longest`."""

BLOCKED = """(short) => {
  const walls = [
    'iframe[src*="recaptcha"]', '.g-recaptcha', 'iframe[src*="hcaptcha"]', '.h-captcha', '#px-captcha',
    '#cf-challenge', '.cf-challenge', '#challenge-form', '#challenge-stage', '.cf-turnstile',
    'iframe[src*="challenges.cloudflare.com"]',
  ];
  for (const wall of walls) for (const element of document.querySelectorAll(wall)) {
    if (element.closest('.grecaptcha-badge')) continue;
    const box = element.getBoundingClientRect();
    const style = getComputedStyle(element);
    const seen = style.visibility !== 'hidden' && style.opacity !== '0';
    if (seen && box.width >= 60 && box.height >= 20) return wall;
  }
  const text = document.body ? document.body.innerText : '';
  if (text.length > short) return '';
  const said = text.toLowerCase();
  return ['verify you are human', 'unusual traffic'].find((phrase) => said.includes(phrase)) || '';
}"""
"""Returns the sign of a bot wall. Badges that ask nothing do not count, nor do phrases in a long text."""

PICKERS = """() => {
  const own = 'select:not([multiple]):not([size])';
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(own + ', ' + own + '::picker(select) { appearance: base-select; }');
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
}"""
"""Makes drop-down lists open inside the page, where the screenshot shows them, not in their own window."""
