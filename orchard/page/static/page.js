"use strict";
// Keys, theme and live updates. Pages work without it.
(() => {
  const root = document.documentElement;
  const theme = {
    get: () => { try { return localStorage.getItem("theme"); } catch { return null; } },
    set: (value) => { try { localStorage.setItem("theme", value); } catch { /* a file from disk */ } },
  };
  const stored = theme.get();
  if (stored === "light" || stored === "dark") root.dataset.theme = stored;

  const dark = () =>
    root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.getElementById("theme")?.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    theme.set(root.dataset.theme);
  });

  const help = document.getElementById("help");
  document.getElementById("keys")?.addEventListener("click", () => help.showModal());

  let here = -1;
  const move = (step) => {
    const items = [...document.querySelectorAll("[data-item]")];
    if (!items.length) return;
    items[here]?.classList.remove("here");
    here = Math.min(Math.max(here + step, 0), items.length - 1);
    const item = items[here];
    item.classList.add("here");
    item.scrollIntoView({ block: "nearest" });
    item.querySelector("a[href]")?.focus({ preventScroll: true });
  };
  const follow = (id) => document.getElementById(id)?.click();
  const foldAll = () => {
    const all = [...document.querySelectorAll("main details")];
    const open = all.some((one) => !one.open);
    for (const one of all) one.open = open;
  };
  const search = () => {
    const field = document.querySelector("main input[type=search]") ?? document.getElementById("search");
    field?.focus();
    field?.select();
  };
  const keys = {
    j: () => move(1), k: () => move(-1), "[": () => follow("previous"), "]": () => follow("next"),
    "/": search, "?": () => help.showModal(), o: foldAll,
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || help?.open) return;
    if (event.target.closest("input, select, textarea")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const act = keys[event.key];
    if (act) {
      event.preventDefault();
      act();
    }
  });

  // Where there is little room, what is below the filters comes first.
  if (matchMedia("(max-width: 42rem)").matches) for (const box of document.querySelectorAll(".folded")) box.open = false;

  // Empty filters stay out of the address.
  for (const form of document.querySelectorAll("form[aria-label=Filters]")) {
    form.addEventListener("submit", () => {
      for (const field of form.elements) if (field.name && !field.value) field.disabled = true;
    });
    form.addEventListener("change", (event) => {
      if (event.target.tagName === "SELECT") form.requestSubmit();
    });
  }
  addEventListener("pageshow", () => {
    for (const field of document.querySelectorAll("form[aria-label=Filters] [disabled]")) field.disabled = false;
  });

  // Live: the server says that something has changed, and the page asks for itself again.
  if (document.body.dataset.live && location.protocol.startsWith("http")) {
    const SHARE = 10; // of the time that one answer takes, a page waits between two
    const pulse = document.getElementById("pulse");
    const source = new EventSource("/live");
    const what = document.body.dataset.live;
    const known = new Map([...document.querySelectorAll(".live")].map((part) => [part, part.innerHTML]));
    let shown = document.body.dataset.shown, newest = shown, busy = false;

    // What somebody types into, has marked or chooses from is left as it is until they are done.
    const inUse = () =>
      document.hidden ||
      document.activeElement?.closest(".live input, .live select, .live textarea") ||
      (!getSelection().isCollapsed && getSelection().anchorNode?.parentElement?.closest(".live"));
    const named = (all) => {
      const seen = new Map();
      return all.map((one) => {
        const place = one.parentElement.closest("[id]")?.id ?? "";
        seen.set(place, (seen.get(place) ?? 0) + 1);
        return [`${place}/${seen.get(place)}`, one];
      });
    };
    const usable = (part) => [...part.querySelectorAll("a[href], button, summary, [tabindex]")];
    const replace = (old, found) => {
      const open = new Map(named([...old.querySelectorAll("details")]).map(([name, one]) => [name, one.open]));
      const focused = named(usable(old)).find(([, one]) => one === document.activeElement)?.[0];
      old.replaceChildren(...found.childNodes);
      for (const [name, one] of named([...old.querySelectorAll("details")])) one.open = open.get(name) ?? one.open;
      new Map(named(usable(old))).get(focused)?.focus({ preventScroll: true });
    };
    const ask = async () => {
      const asked = newest;
      const reply = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (inUse()) return;
      shown = asked;
      if (!reply.ok) return;
      const page = new DOMParser().parseFromString(await reply.text(), "text/html");
      let changed = false;
      for (const old of document.querySelectorAll(".live")) {
        const found = page.getElementById(old.id);
        const html = found?.innerHTML;
        if (!found || html === known.get(old)) continue;
        replace(old, found);
        known.set(old, html);
        changed = true;
      }
      if (!changed) return;
      [...document.querySelectorAll("[data-item]")][here]?.classList.add("here");
      pulse.classList.remove("beat");
      void pulse.offsetWidth;
      pulse.classList.add("beat");
    };
    const refresh = async () => {
      if (busy || newest === shown) return;
      busy = true;
      const began = performance.now();
      try {
        if (!inUse()) await ask();
      } finally {
        const took = performance.now() - began;
        setTimeout(() => { busy = false; refresh(); }, Math.max(SHARE * took, 200));
      }
    };
    source.addEventListener("open", () => { pulse.hidden = false; });
    source.addEventListener("error", () => { pulse.hidden = true; });
    source.addEventListener("changed", (event) => {
      newest = String(JSON.parse(event.data)[what]);
      refresh();
    });
  }
})();
