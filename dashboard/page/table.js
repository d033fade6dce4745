// Tables of rows that may be chosen. A row that is still there is left where it is, so that it keeps its focus and a table
// that grows at its top costs one row.

import { element, onChoose } from "./dom.js";

// columns: [title, row => text, is_text]; key(row) identifies a row; choose(key) or nothing.
export function drawTable(table, columns, rows, key, choose) {
  const body = table.tBodies[0] ?? begin(table, columns);
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

function begin(table, columns) {
  const head = element("tr", {}, ...columns.map(([title, , text]) =>
    element("th", { scope: "col", ...(text ? { class: "text" } : {}) }, title)));
  const body = element("tbody");
  table.replaceChildren(element("thead", {}, head), body);
  return body;
}

function lineOf(columns, texts, key, choose) {
  const cells = columns.map(([, , text], index) => element("td", text ? { class: "text" } : {}, texts[index]));
  const line = element("tr", { "data-key": key, ...(choose ? { tabindex: "0" } : {}) }, ...cells);
  if (choose) onChoose(line, () => choose(key));
  return line;
}

function update(line, texts) {
  texts.forEach((text, index) => {
    const cell = line.cells[index];
    if (cell.textContent !== text) cell.textContent = text;
  });
}
