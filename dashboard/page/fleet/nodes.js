// The table of nodes, the worst first; a name leads to the node's own page.

import { element, find, legend } from "../dom.js";
import { bytes, count, duration, percent, seconds, spoken } from "../format.js";
import { drawCards } from "../parts/cards.js";
import { hitBar, memoryBar } from "../parts/figures.js";
import { mark, pair, spread } from "../parts/marks.js";
import { stacked } from "../parts/stacked.js";
import { CAUSES, MEMORY } from "../words.js";

const ROWS = 50;

const TITLES = [
  ["node", "text name"], ["role and age", "text"], ["first token", "number"], ["each after", "number"],
  ["tokens a second", "number"], ["queue", "number"], ["hit rate", "number wide-cell"], ["memory in use", "text wide-cell"],
];

export class NodeView {
  // refresh: requests the table again after another part of it was chosen.
  constructor(refresh) {
    this.offset = 0;
    find("sort").addEventListener("change", () => { this.offset = 0; refresh(); });
    find("before").addEventListener("click", () => { this.offset = Math.max(0, this.offset - ROWS); refresh(); });
    find("after").addEventListener("click", () => { this.offset += ROWS; refresh(); });
    const named = [["usable", "usable"], ...CAUSES.map(([name]) => [name, spoken(name)])];
    find("node-legend").replaceChildren(element("b", {}, "Hit rate: "), ...legend(named), element("br"),
      element("b", {}, "Memory: "), ...legend(MEMORY.map(([name, text]) => [name, `${spoken(name)}: ${text}`])));
  }

  path(filter) {
    return `/fleet/nodes?${new URLSearchParams({ filter, sort: find("sort").value, offset: this.offset, count: ROWS })}`;
  }

  draw({ known, matched, rows }, { at, scheme, totals }) {
    // A filter may have left fewer rows than the offset.
    if (!rows.length && this.offset) { this.offset = 0; return; }
    const shown = rows.length < matched ? `, ${count(this.offset + 1)} to ${count(this.offset + rows.length)} shown` : "";
    find("matched").textContent = matched === known ? `${count(known)} nodes${shown}` : `${count(matched)} of ${count(known)} nodes${shown}`;
    find("pager").hidden = matched <= ROWS;
    find("before").disabled = this.offset === 0;
    find("after").disabled = this.offset + rows.length >= matched;
    const routed = rows.some((row) => row.routing);
    const titles = routed ? [...TITLES, ["routing", "number narrow-cell"]] : TITLES;
    drawCards(find("node-rows"), titles, rows.map((row) => {
      const cells = row.level === "dead" ? silentCells(row, at, scheme, totals.models, titles.length) : cellsOf(row, at, scheme, totals.models);
      return routed && row.level !== "dead" ? [...cells, routing(row.routing)] : cells;
    }));
  }
}

function cellsOf(row, at, scheme, models) {
  return [
    nameOf(row, row.trouble.map((one) => element("small", { class: `trouble ${one.level}` }, one.text)), scheme),
    pair(roleOf(row, models), row.started_at ? `up ${duration(at - row.started_at)}` : ""),
    spread(row.ttft),
    spread(row.itl),
    rates(row),
    row.waiting === null ? "-" : pair(`${count(row.waiting)} waiting`, `${count(row.running)} running`),
    row.hit ? element("span", { class: "pair" }, percent(row.hit.usable, row.hit.prompt), hitBar(row.hit)) : "-",
    row.memory ? element("span", { class: "pools" }, ...places(row.memory)) : "-",
  ];
}

function silentCells(row, at, scheme, models, number) {
  const seen = row.answered_at ? `, last answered ${duration(at - row.answered_at)} ago` : ", never answered";
  const since = row.silent_since ? `dead for ${duration(at - row.silent_since)}` : "dead";
  const words = row.trouble.map((one) => element("small", { class: "trouble dead" }, `${since}: ${one.text}${seen}`));
  return [nameOf(row, words, scheme), roleOf(row, models), ...Array(number - 2).fill("-")];
}

function nameOf(row, words, scheme) {
  // The address was checked in the configuration. No link contains any part of a node's answer.
  const link = element("a", { href: `${scheme}://${row.address}/`, target: "_blank", rel: "noopener noreferrer", "data-key": row.address }, row.name);
  const address = row.name === row.address ? [] : [element("small", {}, row.address)];
  return element("span", { class: "named" }, mark(row.level), element("span", { class: "pair" }, link, ...address, ...words));
}

// The head names the model if all nodes have the same.
function roleOf(row, models) {
  return models.length > 1 && row.model ? pair(row.role || "-", row.model) : row.role || "-";
}

function rates(row) {
  if (row.output_rate === null && row.prompt_rate === null) return "-";
  return pair(`${rate(row.output_rate)} out`, `${rate(row.prompt_rate)} prompts`);
}

const rate = (value) => (value === null ? "-" : count(value));

// The arena and each tier below it as a bar, with their sizes, and the copies between a tier and
// the arena.
function places([arena, ...below]) {
  const bars = below.flatMap((tier) => {
    const words = `${tier.name}: ${bytes(tier.used)} of ${bytes(tier.size)} cached`;
    return [element("small", { class: "tier" }, tier.name), stacked([["cached", tier.used], ["free", tier.size - tier.used]], words),
      element("small", { class: "used" }, percent(tier.used, tier.size))];
  });
  const sizes = [arena, ...below].map((tier) => `${bytes(tier.size)} ${tier.name}${moved(tier)}`).join(", ");
  return [element("small", {}, arena.name), memoryBar(arena), element("small", { class: "used" }, percent(arena.in_use, arena.size)),
    ...bars, element("small", { class: "sizes" }, sizes)];
}

function moved({ loaded_rate: loaded, written_rate: written }) {
  const words = [loaded ? `${bytes(loaded)}/s loaded` : "", written ? `${bytes(written)}/s written` : ""].filter(Boolean);
  return words.length ? ` (${words.join(", ")})` : "";
}

// The reasons for choices of prefill nodes, and below the choices' extra cost over the best node.
function routing(value) {
  if (!value) return "-";
  const whole = Object.values(value.reasons).reduce((sum, number) => sum + number, 0);
  const [reason, number] = Object.entries(value.reasons).sort(([, one], [, other]) => other - one)[0];
  const regret = value.regret_seconds === null ? "" : `${seconds(value.regret_seconds)} regret`;
  const gap = value.gap === null ? "" : `${percent(value.gap, 1)} fewer usable`;
  return pair(`${spoken(reason)} ${percent(number, whole)}`, [regret, gap].filter(Boolean).join(", "));
}
