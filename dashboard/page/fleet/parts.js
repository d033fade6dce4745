// What more than one view of the fleet is drawn of.

import { element, shape } from "../dom.js";
import { percent, seconds } from "../format.js";

// A level of trouble: its mark, which is told apart without its colour, and its word.
export const LEVELS = { dead: ["✕", "dead"], faulty: ["◆", "faulty"], slow: ["▲", "slow"], fine: ["●", "ok"], unasked: ["○", "not asked yet"] };

export function mark(level) {
  const [sign, word] = LEVELS[level] ?? LEVELS.faulty;
  return element("span", { class: `mark ${level in LEVELS ? level : "faulty"}`, title: word, role: "img", "aria-label": word }, sign);
}

// Median and 95th percentile, one over the other.
export function spread(value) {
  return value ? pair(seconds(value.p50), `p95 ${seconds(value.p95)}`) : "-";
}

export function pair(first, second) {
  return element("span", { class: "pair" }, first, element("small", {}, second));
}

// A bar of parts: [[class, amount]]. Its widths are attributes: the page's policy forbids styles in markup.
export function stacked(parts, words) {
  const whole = parts.reduce((sum, [, amount]) => sum + amount, 0);
  let x = 0;
  const boxes = parts.filter(([, amount]) => amount > 0).map(([name, amount]) => {
    const width = (100 * amount) / whole;
    const box = shape("rect", { class: name, x: x.toFixed(2), width: width.toFixed(2), y: 0, height: 8 });
    x += width;
    return box;
  });
  return shape("svg", { class: "stacked", viewBox: "0 0 100 8", preserveAspectRatio: "none", role: "img", "aria-label": words },
    shape("title", {}, words), ...boxes);
}

export function share(part, whole) {
  return percent(part, whole).replace(".0 %", " %");
}

// A table's head, and rows of cells that know their titles: on a telephone each row is a card.
export function drawCards(table, titles, rows) {
  const head = element("tr", {}, ...titles.map(([title, kind]) => element("th", { scope: "col", class: kind }, title)));
  const lines = rows.map((cells) => element("tr", {}, ...cells.map((cell, index) =>
    element("td", { class: `${titles[index][1]}${cell === "-" ? " unknown" : ""}`, "data-title": titles[index][0] }, cell))));
  const focused = table.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  table.replaceChildren(element("thead", {}, head), element("tbody", {}, ...lines));
  if (focused !== undefined) [...table.querySelectorAll("[data-key]")].find((one) => one.dataset.key === focused)?.focus();
}
