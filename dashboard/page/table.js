// Tables of rows to choose from; on a telephone each row is a card. An unchanged row keeps its
// element, and so its focus. A table growing at its top costs one row.

import { element, onChoose } from "./dom.js";

// columns: [title, row => text, is_text]; key(row) identifies a row; none: text of an empty table;
// choose(key) or nothing.
export function drawTable(table, columns, rows, key, none, choose) {
  const body = table.tBodies[0] ?? begin(table, columns);
  table.caption.textContent = rows.length ? "" : none;
  table.tHead.hidden = !rows.length;
  const wanted = new Set(rows.map((row) => String(key(row))));
  for (const line of [...body.rows]) if (!wanted.has(line.dataset.key)) line.remove();
  let next = body.firstElementChild;
  for (const row of rows) {
    const texts = columns.map(([, read]) => String(read(row)));
    if (next?.dataset.key === String(key(row))) {
      update(next, texts);
      next = next.nextElementSibling;
    } else {
      body.insertBefore(lineOf(columns, texts, key(row), choose), next);
    }
  }
  while (next) {
    const moved = next;
    next = next.nextElementSibling;
    moved.remove();
  }
}

// Mark the row with this key, and no other.
export function markChosen(table, key) {
  for (const line of table.tBodies[0]?.rows ?? []) {
    if (line.dataset.key === String(key)) line.setAttribute("aria-current", "true");
    else line.removeAttribute("aria-current");
  }
}

function begin(table, columns) {
  const head = element("tr", {}, ...columns.map(([title, , text]) =>
    element("th", { scope: "col", ...(text ? { class: "text" } : {}) }, title)));
  const body = element("tbody");
  table.replaceChildren(element("caption"), element("thead", {}, head), body);
  return body;
}

function lineOf(columns, texts, key, choose) {
  const cells = columns.map(([title, , text], index) =>
    element("td", { "data-title": title, class: [text ? "text" : "", index ? "" : "name"].join(" ").trim() }));
  const line = element("tr", { "data-key": key, ...(choose ? { tabindex: "0" } : {}) }, ...cells);
  update(line, texts);
  if (choose) onChoose(line, () => choose(key));
  return line;
}

// A card leaves out unknown values.
function update(line, texts) {
  texts.forEach((text, index) => {
    const cell = line.cells[index];
    if (cell.textContent === text) return;
    cell.textContent = text;
    cell.classList.toggle("unknown", text === "-");
  });
}
