// The rows of a list growing at its top. After a row is chosen no rows are added, so it keeps its
// place. A button shows the count of new rows meanwhile. Rows already shown are still updated.

import { count } from "./format.js";

export class HeldRows {
  // button: shown while rows are held back. key(row) identifies a row. draw(rows) shows the rows.
  constructor(button, key, draw) {
    this.button = button;
    this.key = key;
    this.draw = draw;
    this.latest = [];
    this.held = null; // keys of the shown rows
    button.addEventListener("click", () => { this.release(); this.draw(this.latest); });
  }

  take(rows) {
    this.latest = rows;
    if (!this.held) { this.draw(rows); return; }
    const now = new Map(rows.map((row) => [this.key(row), row]));
    this.shown = this.shown.map((row) => now.get(this.key(row)) ?? row);
    const held = new Set(this.held);
    const fresh = rows.filter((row) => !held.has(this.key(row))).length;
    this.button.hidden = fresh === 0;
    this.button.textContent = `Show ${count(fresh)} newer`;
    this.draw(this.shown);
  }

  hold() {
    if (this.held) return;
    this.shown = this.latest;
    this.held = this.latest.map(this.key);
  }

  release() {
    this.held = null;
    this.button.hidden = true;
  }
}
