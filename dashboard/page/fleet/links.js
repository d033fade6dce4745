// Hand-overs as a matrix: a row for each prefill node, a column for each decode node.

import { element, find } from "../dom.js";
import { bytes, count, seconds } from "../format.js";
import { mark, pair } from "../parts/marks.js";

const STEPS = 5;

export class LinkView {
  constructor() {
    find("link-legend").replaceChildren(
      element("span", {}, "Bytes a second, and the mean time that a hand-over took beyond its forward (exposed)."),
      element("span", {}, element("i", { class: "swatch heat-1" }), element("i", { class: "swatch heat-3" }), element("i", { class: "swatch heat-5" }), "more bytes"),
      element("span", {}, mark("dead"), " not connected"));
  }

  path(filter) {
    return `/fleet/links?${new URLSearchParams({ filter })}`;
  }

  draw(view) {
    const part = view.rows.length < view.prefill_nodes || view.columns.length < view.decode_nodes
      ? ` Shown are ${count(view.rows.length)} x ${count(view.columns.length)}: those with lost links, then those that carry most.` : "";
    find("link-words").textContent = view.links
      ? `${count(view.links)} links from ${count(view.prefill_nodes)} prefill to ${count(view.decode_nodes)} decode nodes, `
        + `${view.lost ? `${count(view.lost)} of them not connected` : "all of them connected"}.${part}`
      : "No node that answers is linked to a prefill node.";
    const cells = new Map(view.cells.map((cell) => [JSON.stringify([cell.row, cell.column]), cell]));
    const most = Math.max(1, ...view.cells.map((cell) => cell.bytes_rate));
    const head = element("tr", {}, element("th", { class: "text" }, "prefill ╲ decode"), ...view.columns.map((column) =>
      element("th", { scope: "col", title: column.address }, column.name === column.address ? column.name : pair(column.name, column.address))));
    const rows = view.rows.map((row) => element("tr", {}, element("th", { scope: "row", class: "text", title: row }, row),
      ...view.columns.map((column) => cellOf(cells.get(JSON.stringify([row, column.address])), most))));
    find("matrix").replaceChildren(...(view.links ? [element("thead", {}, head), element("tbody", {}, ...rows)] : []));
  }
}

function cellOf(link, most) {
  if (!link) return element("td", { class: "none" }, "");
  if (link.state && link.state !== "connected") return element("td", { class: "lost-link" }, mark("dead"), ` ${link.state}`);
  const step = link.bytes_rate ? Math.ceil((STEPS * link.bytes_rate) / most) : 0;
  const exposed = link.exposed_seconds === null ? "idle" : `${seconds(link.exposed_seconds)} exposed`;
  return element("td", { class: `heat-${step}` }, pair(`${bytes(link.bytes_rate)}/s`, exposed));
}
