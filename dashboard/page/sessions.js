// Conversations over time: a row each; a bar a turn, split into cached, new, recomputed and decoded tokens; the gaps are
// tools and people. A mark stands above a turn that had to compute what was evicted. One turn is in the tab order; arrows
// go from turn to turn and from session to session.

import { load } from "./api.js";
import { describe, find, legend, onArrows, onChoose, redraw, shape } from "./dom.js";
import { clock, count, percent, seconds } from "./format.js";

const WIDTH = 1200;
const LABEL = 130;
const ROW = 34;
const PARTS = { cached: "usable", fresh: "fresh", lost_tokens: "lost", decoded: "decoded" };

export class SessionView {
  constructor() {
    this.current = null; // the request in the tab order
    find("session-legend").replaceChildren(...legend([
      ["usable", "cached"], ["fresh", "computed: new"], ["lost", "recomputed: seen before"], ["decoded", "decoded"],
      ["pause", "pause between turns"],
    ]), "▼ an eviction cost this turn");
  }

  async refresh() {
    this.draw(await load("/debug/sessions"));
  }

  draw(sessions) {
    const turns = sessions.flatMap((session) => session.turns);
    if (!turns.length) { find("session-rows").textContent = "No session has finished a turn yet."; return; }
    const first = Math.min(...turns.map((turn) => turn.arrived_at));
    const last = Math.max(...turns.map((turn) => turn.ended_at));
    const scale = (WIDTH - LABEL) / Math.max(0.001, last - first);
    const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${ROW * sessions.length + 18}` });
    this.bars = sessions.map(() => []);
    if (!turns.some((turn) => turn.request === this.current)) this.current = sessions[0].turns.at(-1).request;
    sessions.forEach((session, row) => {
      const y = row * ROW;
      svg.append(shape("text", { x: 0, y: y + 20 }, session.session));
      const begin = LABEL + (session.turns[0].arrived_at - first) * scale;
      const end = LABEL + (session.turns.at(-1).ended_at - first) * scale;
      svg.append(shape("rect", { x: begin, y: y + 14, width: Math.max(1, end - begin), height: 6, class: "pause" }));
      session.turns.forEach((turn, column) => {
        const bar = this.turn(session, turn, LABEL + (turn.arrived_at - first) * scale,
          Math.max(4, (turn.ended_at - turn.arrived_at) * scale), y);
        onArrows(bar, (key) => this.beside(row, column, key));
        this.bars[row].push(bar);
        svg.append(bar);
      });
    });
    const axis = ROW * sessions.length + 12;
    svg.append(shape("text", { x: LABEL, y: axis }, clock(first)),
      shape("text", { x: WIDTH, y: axis, "text-anchor": "end" }, clock(last)));
    redraw(find("session-rows"), "request", svg);
  }

  turn(session, turn, x, width, y) {
    const whole = turn.cached + turn.fresh + turn.lost_tokens + turn.decoded;
    const tabindex = turn.request === this.current ? "0" : "-1";
    const group = shape("g", { tabindex, role: "button", "data-request": turn.request,
      "aria-label": `${session.session}, ${turn.prompt} prompt tokens, ${turn.cached} cached` });
    let next = x;
    for (const [part, kind] of Object.entries(PARTS)) {
      const wide = whole ? (width * turn[part]) / whole : 0;
      if (wide > 0) group.append(shape("rect", { x: next, y: y + 6, width: wide, height: 22, class: kind }));
      next += wide;
    }
    if (turn.evicted) group.append(shape("text", { x: x - 2, y: y + 6 }, "▼"));
    onChoose(group, () => this.choose(session, turn));
    group.addEventListener("focus", () => {
      find("session-rows").querySelector("[tabindex='0']")?.setAttribute("tabindex", "-1");
      group.setAttribute("tabindex", "0");
      this.current = turn.request;
    });
    return group;
  }

  // Within a session from turn to turn; to the same turn of the next one, or its last.
  beside(row, column, key) {
    const of = (other) => this.bars[other]?.[Math.min(column, this.bars[other].length - 1)];
    return {
      ArrowLeft: this.bars[row][column - 1], ArrowRight: this.bars[row][column + 1],
      ArrowUp: of(row - 1), ArrowDown: of(row + 1),
    }[key];
  }

  choose(session, turn) {
    const lost = turn.lost;
    const taker = lost?.eviction?.taken_by;
    describe(find("turn"), [
      ["session", session.session],
      ["request", turn.request],
      ["arrived", `${clock(turn.arrived_at)}${turn.pause === null ? "" : `, ${seconds(turn.pause)} after the turn before`}`],
      ["prompt", `${count(turn.prompt)} tokens`],
      ["cached", `${count(turn.cached)} (${percent(turn.cached, turn.prompt)})`],
      ["computed", `${count(turn.fresh)} new, ${count(turn.lost_tokens)} seen before`],
      ["decoded", `${count(turn.decoded)}, ended by ${turn.reason}`],
      ["first token", seconds(turn.first_token)],
      ["lost to evictions", turn.evicted ? `${count(turn.evicted)} tokens` : null],
      ["the state it lacked", lost ? `covered ${count(lost.tokens)} tokens${taker ? `; ${taker} took its place` : ""}, `
        + `${lost.slabs_since.toFixed(1)} slots were evicted since` : null],
    ]);
  }
}
