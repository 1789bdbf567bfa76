"use strict";
const map = document.getElementById("map");
if (map) {
  const near = Number(map.dataset.near);
  const land = (pin, name, place) => {
    pin.dataset.at = name;
    pin.classList.add("placed");
    map.append(pin);
    pin.style.left = place.style.left;
    pin.style.top = place.style.top;
    document.getElementById(pin.dataset.pin).value = name;
    const shown = document.getElementById("show-" + pin.dataset.pin);
    shown.textContent = name;
  };
  const places = [...map.querySelectorAll(".place")];
  for (const pin of document.querySelectorAll(".pin")) {
    const begun = places.find(each => each.dataset.place === pin.dataset.at);
    if (begun) land(pin, pin.dataset.at, begun);
    pin.addEventListener("pointerdown", event => {
      event.preventDefault();
      pin.setPointerCapture(event.pointerId);
      const from = [event.clientX, event.clientY];
      const move = each => { pin.style.transform = `translate(${each.clientX - from[0]}px, ${each.clientY - from[1]}px)`; };
      const drop = each => {
        pin.style.transform = "";
        pin.removeEventListener("pointermove", move);
        pin.removeEventListener("pointerup", drop);
        const box = map.getBoundingClientRect();
        const at = [each.clientX - box.left, each.clientY - box.top];
        const far = place => Math.hypot(parseFloat(place.style.left) - at[0], parseFloat(place.style.top) - at[1]);
        const best = places.reduce((a, b) => (far(b) < far(a) ? b : a));
        if (far(best) <= near) land(pin, best.dataset.place, best);
      };
      pin.addEventListener("pointermove", move);
      pin.addEventListener("pointerup", drop);
    });
  }
}
const tour = document.getElementById("tour");
if (tour) {
  for (const stop of tour.children) {
    stop.addEventListener("pointerdown", event => {
      event.preventDefault();
      stop.classList.add("held");
      const move = each => {
        const others = [...tour.children].filter(other => other !== stop);
        const after = others.find(other => { const box = other.getBoundingClientRect(); return each.clientY < box.top + box.height / 2; });
        tour.insertBefore(stop, after || null);
      };
      const drop = () => {
        stop.classList.remove("held");
        document.removeEventListener("pointermove", move);
        document.removeEventListener("pointerup", drop);
        document.getElementById("order").value = [...tour.children].map(each => each.dataset.stop).join("|");
      };
      document.addEventListener("pointermove", move);
      document.addEventListener("pointerup", drop);
    });
  }
}
