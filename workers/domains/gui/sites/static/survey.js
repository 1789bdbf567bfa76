(() => {
  const found = [];
  const middle = (a, b) => (a + b) / 2;
  for (const element of document.querySelectorAll("[data-k]")) {
    const box = element.getBoundingClientRect();
    if (!box.width || !box.height) continue;
    let left = Math.max(box.left, 0), right = Math.min(box.right, innerWidth);
    let top = Math.max(box.top, 0), bottom = Math.min(box.bottom, innerHeight);
    let inside = null, away = 0;
    for (let up = element.parentElement; up && up !== document.body; up = up.parentElement) {
      const over = getComputedStyle(up).overflowY;
      if (over !== "auto" && over !== "scroll") continue;
      const frame = up.getBoundingClientRect();
      if (box.top < frame.top || box.bottom > frame.bottom) {
        inside = [middle(frame.left, frame.right), middle(Math.max(frame.top, 0), Math.min(frame.bottom, innerHeight))];
        away = middle(box.top, box.bottom) - middle(frame.top, frame.bottom);
      }
      top = Math.max(top, frame.top); bottom = Math.min(bottom, frame.bottom);
    }
    if (!inside) away = middle(box.top, box.bottom) - innerHeight / 2;
    const x = middle(left, right), y = middle(top, bottom);
    const hit = right > left && bottom > top ? document.elementFromPoint(x, y) : null;
    const labels = [...(element.labels || [])];
    const mine = !!hit && [element, ...labels].some(each => each.contains(hit));
    const away_by_half = Math.sign(away) * Math.min(Math.abs(away), innerHeight);
    found.push({
      key: element.dataset.k, x, y, seen: mine, inside, away: away_by_half,
      height: bottom - top,
      value: element.tagName === "SELECT" ? (element.selectedOptions[0] || {}).label || ""
        : "value" in element ? String(element.value) : element.textContent.trim().slice(0, 200),
      on: !!element.checked || element.getAttribute("aria-pressed") === "true",
    });
  }
  return {
    page: document.body ? document.body.dataset.page || "" : "", width: innerWidth, height: innerHeight,
    elements: found, focus: document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.k || "" : "",
  };
})()
