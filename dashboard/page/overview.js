// The first view: the hit waterfall, the tokens recoverable with more memory, and the use of the
// memory.

import { element, find } from "./dom.js";
import { bytes, count, percent, spoken } from "./format.js";
import { StackPlot } from "./stack.js";
import { CAUSES, MEMORY, OWNERS } from "./words.js";

export class Overview {
  constructor() {
    this.waterfall = new StackPlot(find("waterfall"), ["usable", ...CAUSES.map(([name]) => name)],
      (at) => (at.length > 1 ? `tokens in ${at[1] - at[0]} s` : "tokens"));
    this.memory = new StackPlot(find("memory-plot"), MEMORY.map(([name]) => name), () => "MiB");
    this.allCauses = false;
    window.addEventListener("resize", () => { this.waterfall.resize(); this.memory.resize(); });
    find("all-causes").addEventListener("click", () => { this.allCauses = !this.allCauses; this.foldCauses(); });
  }

  draw(state) {
    this.drawHeadlines(state);
    this.drawTotals(state);
    const columns = { usable: state.hits.columns.usable };
    for (const [name] of CAUSES) columns[name] = state.hits.columns[`lost.${name}`];
    this.waterfall.draw(state.hits.at, columns);
    if (state.pools) {
      this.drawPools(state.pools);
      const { memory, at } = state.series;
      this.memory.draw(at, Object.fromEntries(MEMORY.map(([name]) => [name, memory[name].map((size) => size / 2 ** 20)])));
    }
  }

  drawHeadlines({ totals, what_if: more, pools, drafts }) {
    const prompt = totals.prompt ?? 0;
    const possible = prompt - (totals["lost.new"] ?? 0) - (totals["lost.unscheduled"] ?? 0);
    find("headline").textContent = prompt
      ? `Since the start ${percent(totals.usable ?? 0, prompt)} of ${count(prompt)} prompt tokens were usable, `
        + `${percent(possible, prompt)} had been seen before.`
      : "No request has ended yet.";
    find("what-if").textContent = more.slots
      ? `+${count(more.slots)} slots would recover ${more.points.toFixed(1)} points `
        + `(${count(more.tokens)} of the last ${count(more.of_tokens)} prompt tokens).${roomBelow(more, pools)}`
      : "";
    find("drafts").textContent = draftsOf(drafts ?? {});
    find("peers").textContent = peersOf(pools?.prefill_nodes ?? {});
  }

  // Over the curve's time span, and since the start.
  drawTotals({ totals, hits }) {
    const recent = (key) => (hits.columns[key] ?? []).reduce((sum, value) => sum + value, 0);
    const rows = [
      ["prompt", "prompt", "tokens of requests that ended"],
      ["usable", "usable", "not computed again"],
      ...CAUSES.map(([name, text]) => [`lost.${name}`, name, text]),
    ];
    const head = ["", "last 5 min", "share", "since the start", ""];
    find("totals").replaceChildren(
      element("thead", {}, element("tr", {}, ...head.map((title) => (title ? element("th", { scope: "col" }, title) : element("td"))))),
      element("tbody", {}, ...rows.map(([key, name, text]) => {
        const value = totals[key] ?? 0;
        return element("tr", key.startsWith("lost.") && !value ? { class: "zero" } : {},
          element("td", {}, element("i", { class: `swatch ${name}` }), spoken(name)),
          element("td", { "data-recent": key, "data-value": recent(key) }, count(recent(key))),
          element("td", {}, percent(recent(key), recent("prompt"))),
          element("td", { "data-total": key, "data-value": value }, count(value)),
          element("td", { class: "text" }, text));
      })));
    this.foldCauses();
  }

  // Causes with a zero count are shown by a button.
  foldCauses() {
    const zero = find("totals").querySelectorAll(".zero");
    for (const row of zero) row.hidden = !this.allCauses;
    const button = find("all-causes");
    button.hidden = !zero.length;
    button.setAttribute("aria-expanded", this.allCauses);
    button.textContent = this.allCauses ? "Only causes that were" : `All causes (${count(zero.length)} more, all 0)`;
  }

  // Bytes of the arena and of each tier below it.
  drawTiers(pools) {
    const places = placesOf(pools);
    const titles = ["in use", "cached", "of", "loaded", "written"];
    find("tiers").replaceChildren(...(places.length ? [
      element("thead", {}, element("tr", {}, element("td"), ...titles.map((title) => element("th", { scope: "col" }, title)))),
      element("tbody", {}, ...places.flatMap(({ name, sizes, text }) => [
        element("tr", { "data-tier": name }, element("td", {}, name), ...sizes.map((value) =>
          element("td", value === undefined ? {} : { "data-value": value }, value === undefined ? "-" : bytes(value)))),
        element("tr", { class: "words" }, element("td", { class: "text", colspan: 6 }, text)),
      ])),
    ] : []));
  }

  drawPools(pools) {
    const kinds = ["slots", "pages"];
    const rows = OWNERS.map(([owner, text]) => element("tr", {},
      element("td", {}, element("i", { class: `swatch ${owner}` }), spoken(owner)),
      ...kinds.map((kind) => element("td", { "data-pool": kind, "data-owner": owner, "data-value": pools[kind][owner] },
        count(pools[kind][owner]))),
      element("td", { class: "text" }, text)));
    const wholes = kinds.map((kind) => OWNERS.reduce((sum, [owner]) => sum + pools[kind][owner], 0));
    const total = element("tr", {}, ...["total", ...wholes.map(count), ""].map((text) => element("td", {}, text)));
    const head = element("tr", {}, element("td"), ...kinds.map((title) => element("th", { scope: "col" }, title)), element("td"));
    find("pools").replaceChildren(element("thead", {}, head), element("tbody", {}, ...rows, total));
    find("tree-words").textContent = `${count(pools.tree.nodes ?? 0)} nodes, ${count(pools.tree.checkpoints ?? 0)} checkpoints, `
      + `policy ${pools.policy || "-"}, integrity: ${pools.integrity}${partsOf(pools.part_bytes)}`;
    find("memory-words").replaceChildren(...(pools.memory ? MEMORY.map(([name, text]) => element("span", {},
      element("i", { class: `swatch ${name}` }), `${spoken(name)} ${percent(pools.memory[name], pools.memory.size)}: ${text}`)) : []));
    this.drawTiers(pools);
  }
}

// The parts of a page and of a state slot by name, with their bytes over all layers.
function partsOf(sizes = {}) {
  const of = (holder) => Object.entries(sizes).filter(([name]) => name.startsWith(`${holder}.`))
    .map(([name, size]) => `${name.slice(holder.length + 1)} ${bytes(size)}`).join(", ");
  return Object.keys(sizes).length ? `; a page: ${of("page")}; a state slot: ${of("slot") || "-"}` : "";
}

// A recording from before the slab size was recorded has none. Everything in a tier below the arena
// is cached.
function placesOf({ memory, tiers = [] }) {
  if (!memory) return [];
  const below = tiers.map((tier) => ({
    name: tier.name,
    sizes: [undefined, (tier.slabs.total - tier.slabs.free) * tier.slab_bytes, tier.slabs.total * tier.slab_bytes, tier.bytes.loaded ?? 0, tier.bytes.written ?? 0],
    text: tierWords(tier),
  }));
  const arena = { name: "arena", sizes: [memory.in_use, memory.cached, memory.size, undefined, undefined], text: "what prompts are computed in and resume from" };
  return [arena, ...below];
}

// The same amount of memory in the host. A tier also keeps everything in the memory above it, so
// the first tier begins with the arena's size.
function roomBelow({ slots }, pools) {
  if (!pools?.slabs || !pools.slab_bytes) return "";
  const { slabs, slab_bytes: slab, tiers = [] } = pools;
  const arena = (slabs.free ?? 0) + (slabs.pages ?? 0) + (slabs.slots ?? 0);
  return tiers.length ? ` So would +${bytes(slots * slab)} of host memory.` : ` So would ${bytes((arena + slots) * slab)} of host memory below the arena.`;
}

function tierWords({ held, loads, writes, dropped, budget_bytes: budget = {} }) {
  const failed = Object.entries({ loads, writes }).flatMap(([kind, ends]) =>
    Object.entries(ends).filter(([end, number]) => number && end !== "done").map(([end, number]) => `${count(number)} ${kind} ${spoken(end)}`));
  return [`${count(held.pages ?? 0)} pages and ${count(held.slots ?? 0)} states of use`, `${count(loads.done ?? 0)} loads, ${count(writes.done ?? 0)} writes`,
    ...failed, `${count(dropped.pages ?? 0)} pages and ${count(dropped.slots ?? 0)} states given up`,
    ...(budget.a_second === undefined ? [] : [`${bytes(Math.max(0, budget.left))} may be written now, ${bytes(budget.a_second)} more a second`])].join(", ");
}

// Empty for a node without drafts, and for a recording from before there were drafts.
function draftsOf(drafts) {
  return Object.entries(drafts).map(([source, of]) => `Drafted: ${count(of.drafted)} tokens by ${source}, of which ${percent(of.accepted, of.drafted)} held. `
    + `With at most 1, 2 ... drafts a step would have given ${of.tokens_a_step.map((tokens) => tokens.toFixed(2)).join(", ")} tokens.`).join(" ");
}

// Empty for a node without prefill nodes.
function peersOf(nodes) {
  const states = Object.entries(nodes).filter(([, number]) => number);
  return states.length ? `Prefill nodes: ${states.map(([state, number]) => `${count(number)} ${state}`).join(", ")}.` : "";
}
