// A table with its rows as cards on a telephone.

import { element } from "../dom.js";

// Draw a table's head, and rows of cells with their titles: on a telephone each row is a card.
export function drawCards(table, titles, rows) {
  const head = element("tr", {}, ...titles.map(([title, kind]) => element("th", { scope: "col", class: kind }, title)));
  const lines = rows.map((cells) => element("tr", {}, ...cells.map((cell, index) =>
    element("td", { class: `${titles[index][1]}${cell === "-" ? " unknown" : ""}`, "data-title": titles[index][0] }, cell))));
  const focused = table.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  table.replaceChildren(element("thead", {}, head), element("tbody", {}, ...lines));
  if (focused !== undefined) [...table.querySelectorAll("[data-key]")].find((one) => one.dataset.key === focused)?.focus();
}
