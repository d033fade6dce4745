// Conversations over time: a row each; a bar for each turn, split into cached, new, recomputed and
// decoded tokens; the gaps are tools and people. A mark above a turn shows recomputed evicted
// tokens. One turn is in the tab order; arrows go from turn to turn and from session to session.

import { load } from "./api.js";
import { describe, find, legend, onArrows, onChoose, shape } from "./dom.js";
import { clock, count, percent, seconds } from "./format.js";

const NARROWEST = 320;
const LABEL = 92;
const ROW = 34;
const PARTS = { cached: "usable", fresh: "fresh", lost_tokens: "lost", decoded: "decoded" };

// The time span of the turns, widened to whole steps of about a 32nd, so a new turn seldom moves
// the others.
function spanOf(turns) {
  const first = Math.min(...turns.map((turn) => turn.arrived_at));
  const last = Math.max(...turns.map((turn) => turn.ended_at));
  const step = 2 ** Math.ceil(Math.log2(Math.max(1e-3, last - first) / 32));
  return { begin: Math.floor(first / step) * step, end: Math.ceil(last / step) * step };
}

export class SessionView {
  constructor() {
    this.current = null; // the request in the tab order
    this.sessions = [];
    this.width = NARROWEST; // width of the drawing: its words have the size of the page's
    this.drawn = new Map(); // by drawn session: an unchanged one is only moved
    this.svg = shape("svg");
    this.axis = shape("g");
    find("session-legend").replaceChildren(...legend([
      ["usable", "cached"], ["fresh", "computed: new"], ["lost", "recomputed: seen before"], ["decoded", "decoded"],
      ["pause", "pause between turns"],
    ]), "▼ an eviction cost this turn");
    new ResizeObserver(() => { if (this.sessions.length && find("session-rows").clientWidth !== this.width) this.draw(this.sessions); })
      .observe(find("session-rows"));
  }

  async refresh() {
    this.draw(await load("/debug/sessions"));
  }

  draw(sessions) {
    const turns = sessions.flatMap((session) => session.turns);
    if (!turns.length) { find("session-rows").textContent = "No session has finished a turn yet."; return; }
    if (!this.svg.isConnected) find("session-rows").replaceChildren(this.svg);
    const focused = this.svg.contains(document.activeElement);
    this.width = Math.max(NARROWEST, find("session-rows").clientWidth);
    const span = spanOf(turns);
    const before = this.drawn;
    this.sessions = sessions;
    if (!turns.some((turn) => turn.request === this.current)) this.current = sessions[0].turns.at(-1).request;
    this.drawn = new Map(sessions.map((session, row) => {
      const name = [session.session, session.turns[0].request, session.turns.at(-1).request, span.begin, span.end, this.width].join(" ");
      const group = before.get(name) ?? this.session(session, span);
      group.setAttribute("transform", `translate(0 ${ROW * row})`);
      return [name, group];
    }));
    for (const [name, group] of before) if (!this.drawn.has(name)) group.remove();
    for (const group of this.drawn.values()) if (!group.isConnected) this.svg.append(group);
    this.drawAxis(span, ROW * sessions.length);
    this.enter(this.current);
    if (focused) this.bar(this.current).focus();
  }

  drawAxis(span, y) {
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${y + 18}`);
    this.axis.replaceChildren(shape("text", { x: LABEL, y: y + 12 }, clock(span.begin)),
      shape("text", { x: this.width, y: y + 12, "text-anchor": "end" }, clock(span.end)));
    this.svg.append(this.axis);
  }

  session(session, span) {
    const scale = (this.width - LABEL) / (span.end - span.begin);
    const x = (at) => LABEL + (at - span.begin) * scale;
    const [first, last] = [session.turns[0], session.turns.at(-1)];
    return shape("g", {},
      shape("text", { x: 0, y: 20 }, session.session),
      shape("rect", { x: x(first.arrived_at), y: 14, width: Math.max(1, x(last.ended_at) - x(first.arrived_at)), height: 6, class: "pause" }),
      ...session.turns.map((turn) => this.turn(session, turn, x(turn.arrived_at), Math.max(4, (turn.ended_at - turn.arrived_at) * scale))));
  }

  turn(session, turn, x, width) {
    const whole = turn.cached + turn.fresh + turn.lost_tokens + turn.decoded;
    const group = shape("g", { tabindex: "-1", role: "button", "data-request": turn.request,
      "aria-label": `${session.session}, ${turn.prompt} prompt tokens, ${turn.cached} cached` });
    let next = x;
    for (const [part, kind] of Object.entries(PARTS)) {
      const wide = whole ? (width * turn[part]) / whole : 0;
      if (wide > 0) group.append(shape("rect", { x: next, y: 6, width: wide, height: 22, class: kind }));
      next += wide;
    }
    if (turn.evicted) group.append(shape("text", { x: x - 2, y: 6 }, "▼"));
    onChoose(group, () => this.choose(session, turn));
    onArrows(group, (key) => this.beside(turn.request, key));
    group.addEventListener("focus", () => this.enter(turn.request));
    return group;
  }

  bar(request) {
    return request && this.svg.querySelector(`[data-request="${CSS.escape(request)}"]`);
  }

  enter(request) {
    this.svg.querySelector("[tabindex='0']")?.setAttribute("tabindex", "-1");
    this.bar(request).setAttribute("tabindex", "0");
    this.current = request;
  }

  // Within a session from turn to turn; otherwise to the same turn of the next session, or its
  // last.
  beside(request, key) {
    const row = this.sessions.findIndex((session) => session.turns.some((turn) => turn.request === request));
    const { turns } = this.sessions[row];
    const column = turns.findIndex((turn) => turn.request === request);
    const of = (other) => other && other.turns[Math.min(column, other.turns.length - 1)];
    const next = {
      ArrowLeft: turns[column - 1], ArrowRight: turns[column + 1],
      ArrowUp: of(this.sessions[row - 1]), ArrowDown: of(this.sessions[row + 1]),
    }[key];
    return this.bar(next?.request);
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
