// Tables of rows that may be chosen; a row keeps its focus when the table is drawn anew.

import { element, onChoose } from "./dom.js";

// columns: [title, row => text, is_text]; choose(row) or nothing; key(row) tells rows apart.
export function drawTable(table, columns, rows, key, choose) {
  const focused = document.activeElement?.closest?.("tr")?.dataset.key;
  const head = element("tr", {}, ...columns.map(([title, , text]) =>
    element("th", { scope: "col", ...(text ? { class: "text" } : {}) }, title)));
  const body = rows.map((row) => {
    const cells = columns.map(([, read, text]) =>
      element("td", text ? { class: "text" } : {}, read(row)));
    const line = element("tr", { "data-key": key(row), ...(choose ? { tabindex: "0" } : {}) }, ...cells);
    if (choose) onChoose(line, () => choose(row));
    return line;
  });
  table.replaceChildren(element("thead", {}, head), element("tbody", {}, ...body));
  if (focused) [...table.rows].find((line) => line.dataset.key === focused)?.focus();
}
