"use strict";
const byId = id => document.getElementById(id);
const chosen = () => [...document.querySelectorAll("#rows input:checked")].map(each => each.value);
for (const entry of document.querySelectorAll("[data-set]")) {
  entry.addEventListener("click", event => {
    event.preventDefault();
    const rows = chosen();
    byId("chosen").value = rows.join(",");
    byId("state").value = entry.dataset.set;
    byId("question").textContent = rows.length ? entry.textContent + ": " + rows.join(", ") : "Please select invoices first.";
    document.querySelector("#confirm [data-k=confirm]").hidden = !rows.length;
    byId("confirm").hidden = false;
  });
}
for (const opener of document.querySelectorAll("[data-open]")) {
  opener.addEventListener("click", () => { byId(opener.dataset.open).hidden = false; });
}
for (const closer of document.querySelectorAll("[data-close]")) {
  closer.addEventListener("click", () => { closer.closest(".veil").hidden = true; });
}
