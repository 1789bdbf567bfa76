"use strict";
// Keys, theme and live updates. Pages work without it.
(() => {
  const root = document.documentElement;
  const base = new URL("..", document.currentScript?.src || location.href); // a proxy may serve it below a path
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
    const all = [...document.querySelectorAll("main details:not(.folded, .pop)")];
    const open = all.some((one) => !one.open);
    for (const one of all) one.open = open;
  };
  const search = () => {
    const field = document.querySelector("main input[type=search]") ?? document.getElementById("search");
    const fold = field?.closest("details");
    if (fold) fold.open = true;
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

  // Campaigns are compared once two are chosen.
  const counted = () => {
    for (const button of document.querySelectorAll("[data-compare]")) {
      const chosen = button.form?.querySelectorAll("input:checked").length ?? 0;
      button.disabled = chosen < 2;
      button.textContent = chosen ? `Compare ${chosen}` : "Compare";
    }
  };
  addEventListener("change", counted);
  addEventListener("pageshow", counted);

  // A popup closes by Escape and by a click elsewhere.
  const shut = (but) => {
    for (const box of document.querySelectorAll(".pop[open]")) if (box !== but) box.open = false;
  };
  addEventListener("click", (event) => shut(event.target.closest?.(".pop")));
  addEventListener("keydown", (event) => {
    const box = event.key === "Escape" && document.querySelector(".pop[open]");
    if (box) [box.open] = [false, box.querySelector("summary").focus()];
  });

  // Views: names for addresses, which this browser keeps. The address alone is the whole view.
  for (const box of document.querySelectorAll("[data-views]")) {
    const key = `views ${base.pathname} ${box.dataset.views}`;
    const kept = () => { try { return JSON.parse(localStorage.getItem(key)) ?? {}; } catch { return {}; } };
    const show = (views) => {
      box.querySelector("ul").replaceChildren(...Object.entries(views).map(([name, search]) => {
        const [row, link, remove] = ["li", "a", "button"].map((tag) => document.createElement(tag));
        [link.textContent, link.href] = [name, location.pathname + search];
        if (search === location.search) link.setAttribute("aria-current", "page");
        [remove.textContent, remove.type, remove.className] = ["×", "button", "icon"];
        remove.setAttribute("aria-label", `Forget the view ${name}`);
        remove.addEventListener("click", (event) => {
          event.stopPropagation();
          const { [name]: _, ...left } = kept();
          keep(left);
        });
        row.append(link, " ", remove);
        return row;
      }));
    };
    const keep = (views) => {
      try { localStorage.setItem(key, JSON.stringify(views)); } catch { /* the browser keeps nothing */ }
      show(views);
    };
    box.querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      const field = event.target.querySelector("input");
      keep({ ...kept(), [field.value]: location.search });
      field.value = "";
    });
    show(kept());
    box.hidden = false;
  }

  // A report in one file: its pages are texts, and the address names one of them, and a mark in it.
  const pages = new Map([...document.querySelectorAll("script[data-page]")].map((one) => [one.dataset.page, one]));
  if (pages.size) {
    const main = document.getElementById("main");
    let shown = "index.html";
    const show = () => {
      const [name, mark] = decodeURIComponent(location.hash.slice(1) || "index.html").split("!");
      const page = pages.get(name);
      if (!page) return;
      if (name !== shown) {
        main.innerHTML = page.textContent;
        document.title = page.dataset.title;
        for (const link of document.querySelectorAll("header nav a")) {
          link.removeAttribute("aria-current");
          if (link.hash.slice(1) === name) link.setAttribute("aria-current", "page");
        }
        [here, shown] = [-1, name];
        scrollTo(0, 0);
        main.focus({ preventScroll: true });
      }
      if (mark) document.getElementById(mark)?.scrollIntoView();
    };
    addEventListener("hashchange", show);
    show();
  }

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
    const source = new EventSource(new URL("live", base));
    const what = document.body.dataset.live;
    const known = new Map([...document.querySelectorAll(".live")].map((part) => [part, part.innerHTML]));
    let shown = document.body.dataset.shown, newest = shown, busy = false;

    // What somebody types into, has marked or chooses from is left as it is until they are done.
    const inUse = () =>
      document.hidden ||
      document.activeElement?.closest(".live input:not([type=checkbox]), .live select, .live textarea") ||
      (!getSelection().isCollapsed && getSelection().anchorNode?.parentElement?.closest(".live"));
    const named = (all) => {
      const seen = new Map();
      return all.map((one) => {
        const place = one.parentElement.closest("[id]")?.id ?? "";
        seen.set(place, (seen.get(place) ?? 0) + 1);
        return [`${place}/${seen.get(place)}`, one];
      });
    };
    const usable = (part) => [...part.querySelectorAll("a[href], button, summary, input, [tabindex]")];
    const replace = (old, found) => {
      const open = new Map(named([...old.querySelectorAll("details")]).map(([name, one]) => [name, one.open]));
      const ticked = new Set([...old.querySelectorAll("input:checked")].map((one) => one.name + one.value));
      const focused = named(usable(old)).find(([, one]) => one === document.activeElement)?.[0];
      old.replaceChildren(...found.childNodes);
      for (const one of old.querySelectorAll("input[type=checkbox]")) one.checked = ticked.has(one.name + one.value);
      counted();
      for (const [name, one] of named([...old.querySelectorAll("details")])) one.open = open.get(name) ?? one.open;
      new Map(named(usable(old))).get(focused)?.focus({ preventScroll: true });
    };
    const ask = async () => {
      const asked = newest;
      const reply = await fetch(location.href, { headers: { Accept: "text/html" } });
      if (inUse() || reply.status >= 500) return; // asked for again
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
