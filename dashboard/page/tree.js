// The radix tree as an icicle: across, tokens of a node and all below it; down, the path of a
// prompt. The node sends only the heaviest subtrees, so the drawing stays small for any size of the
// tree. One box is in the tab order; arrows go from box to box.

import { load } from "./api.js";
import { describe, element, find, legend, onArrows, onChoose, redraw, shape } from "./dom.js";
import { count } from "./format.js";

const NARROWEST = 320;
const ROW = 26;
const LEAST = 2; // narrower boxes are not drawn, but counted in the parent's "not drawn"

const KINDS = [
  ["namespace", "all prompts, or all of a tenant"],
  ["checkpoint", "a state stands at its end"],
  ["kv_only", "KV only"],
  ["in_use", "in use by a request"],
  ["in_transfer", "being handed over"],
  ["hidden-nodes", "smaller ones together"],
];

const labelOf = (row, hidden, width) => {
  const unit = (text) => (width > 120 ? text : "");
  return hidden ? `+${count(hidden.nodes)}${unit(" nodes")}` : `${count(row.standing.tokens)}${unit(" tokens")}`;
};

const nameOf = (row) => row.name ?? "top";

export class TreeView {
  constructor() {
    this.path = [];
    this.role = "";
    this.boxes = [];
    this.svg = shape("svg", { role: "tree", "aria-label": "Radix tree" });
    this.drawn = new Map(); // box and look by name
    this.current = "top"; // the box in the tab order
    this.chosen = null;
    this.width = NARROWEST; // width of the drawing: its words have the size of the page's
    this.rows = [];
    find("tree-legend").replaceChildren(...legend(KINDS));
    new ResizeObserver(() => { if (this.rows.length && find("icicle").clientWidth !== this.width) this.draw(); }).observe(find("icicle"));
  }

  async refresh() {
    const under = this.path.at(-1)?.name;
    try {
      this.rows = await load(`/debug/tree${under ? `?under=${under}` : ""}`);
    } catch (error) {
      if (!this.path.length) { find("icicle").textContent = error.message; return; }
      this.path.pop();
      return this.refresh();
    }
    this.draw();
  }

  draw() {
    this.width = Math.max(NARROWEST, find("icicle").clientWidth);
    const children = this.rows.map(() => []);
    this.rows.forEach((row, index) => { if (row.above !== null) children[row.above].push(index); });
    const boxes = [];
    const place = (index, x, width, level, above) => {
      const box = { row: this.rows[index], x, width, level, above };
      boxes.push(box);
      const scale = width / Math.max(1, this.rows[index].standing.tokens);
      let next = x;
      for (const child of children[index]) {
        const wide = this.rows[child].standing.tokens * scale;
        if (wide >= LEAST) place(child, next, wide, level + 1, box);
        next += wide;
      }
      const hidden = this.rows[index].hidden;
      if (hidden.tokens * scale >= LEAST) boxes.push({ hidden, x: next, width: hidden.tokens * scale, level: level + 1, above: box });
    };
    if (this.rows.length) place(0, 0, this.width, 0, null);
    this.boxes = boxes.filter((box) => box.row);
    const height = ROW * (1 + Math.max(0, ...boxes.map((box) => box.level)));
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
    this.fill(boxes);
    if (!this.svg.isConnected) find("icicle").replaceChildren(this.svg);
    this.drawPath();
  }

  // An unchanged box keeps its element, and its place in the tab order.
  fill(boxes) {
    const focused = this.svg.contains(document.activeElement);
    const before = this.drawn;
    this.drawn = new Map(boxes.map((box) => {
      const name = box.row ? nameOf(box.row) : `below ${nameOf(box.above.row)}`;
      const look = this.lookOf(box);
      const known = before.get(name);
      return [name, known && known.look.join() === look.join() ? known : { look, group: this.box(name, box, ...look) }];
    }));
    const drawn = new Set([...this.drawn.values()].map(({ group }) => group));
    for (const { group } of before.values()) if (!drawn.has(group)) group.remove();
    for (const group of drawn) if (!group.isConnected || group.parentNode !== this.svg) this.svg.append(group);
    if (!this.boxes.some((box) => nameOf(box.row) === this.current)) this.current = this.boxes.length ? nameOf(this.boxes[0].row) : "top";
    if (this.boxes.length) this.enter(this.current);
    if (focused) this.rect(this.current)?.focus();
  }

  // Place, kind and title. In tenths of a pixel, because one more prompt in a large tree moves
  // every box by less.
  lookOf({ row, hidden, x, width, level }) {
    const kind = hidden ? "hidden-nodes" : this.kindOf(row);
    const title = hidden
      ? `${count(hidden.nodes)} more nodes, ${count(hidden.tokens)} tokens`
      : `${count(row.standing.tokens)} tokens, ${count(row.standing.nodes)} nodes, ${kind.replace("_", " ")}`;
    const label = width <= 60 ? "" : labelOf(row, hidden, width);
    return [x.toFixed(1), width.toFixed(1), level * ROW, kind, title, label];
  }

  box(name, { row }, x, width, y, kind, title, label) {
    const chosen = row && name === this.chosen ? " chosen" : "";
    const rect = shape("rect", { x, y, width, height: ROW - 2, class: `box ${kind}${chosen}` }, shape("title", {}, title));
    const group = shape("g", {}, rect);
    if (label) group.append(shape("text", { x: Number(x) + 4, y: y + 16, class: `on-${kind}` }, label));
    if (row) {
      for (const [key, value] of Object.entries({ tabindex: "-1", role: "treeitem", "aria-label": title, "data-node": name })) {
        rect.setAttribute(key, value);
      }
      onChoose(rect, () => this.choose(name));
      rect.addEventListener("focus", () => this.enter(name));
      onArrows(rect, (key) => this.beside(name, key));
    }
    return group;
  }

  rect(name) {
    return this.drawn.get(name)?.group.firstChild;
  }

  enter(name) {
    this.svg.querySelector("[tabindex='0']")?.setAttribute("tabindex", "-1");
    this.rect(name).setAttribute("tabindex", "0");
    this.current = name;
  }

  // Up to the parent, down to the first child, sideways within a level.
  beside(name, key) {
    const box = this.boxes.find((one) => nameOf(one.row) === name);
    const level = this.boxes.filter((one) => one.level === box.level);
    const at = level.indexOf(box);
    const next = {
      ArrowUp: box.above, ArrowDown: this.boxes.find((one) => one.above === box),
      ArrowLeft: level[at - 1], ArrowRight: level[at + 1],
    }[key];
    return next && this.rect(nameOf(next.row));
  }

  choose(name) {
    const { row } = this.boxes.find((one) => nameOf(one.row) === name);
    this.svg.querySelector(".chosen")?.classList.remove("chosen");
    this.rect(name).classList.add("chosen");
    this.chosen = name;
    describe(find("tree-node"), [
      ["node", row.name ?? "all namespaces"],
      ["path", `${count(row.depth)} tokens from the start, ${count(row.tokens)} of them its own`],
      ["state at its end", row.state ?? "none"],
      ["states inside the next page", count(row.tails)],
      ["in use", row.leases || row.state_pins
        ? `${row.leases} requests stand here, ${row.state_pins} read its state`
        : row.protected ? "by a request further down" : "no"],
      ["children", count(row.children)],
      ["with all below", `${count(row.standing.tokens)} tokens, ${count(row.standing.nodes)} nodes, ${count(row.standing.states)} states`],
      ["since its last use", row.unused === null ? null : `${count(row.unused)} calls of the cache`],
    ]);
    if (row.name && row.children) {
      const zoom = element("button", {}, "Look below it");
      zoom.addEventListener("click", () => { this.path.push(row); this.refresh(); });
      find("tree-node").append(element("dt", {}, ""), element("dd", {}, zoom));
    }
  }

  drawPath() {
    const steps = [null, ...this.path].map((row, index) => {
      const step = element("button", { "data-step": index }, row ? `${count(row.depth)} tokens` : "top");
      step.addEventListener("click", () => { this.path.length = index; this.refresh(); });
      return step;
    });
    redraw(find("tree-path"), "step", ...steps);
  }

  kindOf(row) {
    if (row.tokens === 0 && row.depth === 0) return "namespace";
    // Every request on a prefill node is for another node.
    if (row.leases || row.state_pins || row.protected) return this.role === "prefill" ? "in_transfer" : "in_use";
    return row.state || row.tails ? "checkpoint" : "kv_only";
  }
}
