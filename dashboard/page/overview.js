// The first view: the hit waterfall, what more room would recover, and both kinds in the arena.

import { element, find } from "./dom.js";
import { bytes, count, percent, seconds, spoken } from "./format.js";
import { StackPlot } from "./stack.js";
import { CAUSES, OWNERS } from "./words.js";

export class Overview {
  constructor() {
    this.waterfall = new StackPlot(find("waterfall"), ["usable", ...CAUSES.map(([name]) => name)],
      (at) => (at.length > 1 ? `tokens in ${at[1] - at[0]} s` : "tokens"));
    this.slots = new StackPlot(find("slots"), OWNERS.map(([name]) => name), () => "slots");
    window.addEventListener("resize", () => { this.waterfall.resize(); this.slots.resize(); });
  }

  draw(state) {
    this.drawHeadlines(state);
    this.drawTotals(state.totals);
    const columns = { usable: state.hits.columns.usable };
    for (const [name] of CAUSES) columns[name] = state.hits.columns[`lost.${name}`];
    this.waterfall.draw(state.hits.at, columns);
    if (state.pools) {
      this.drawPools(state.pools);
      this.slots.draw(state.series.at, state.series.slots);
    }
  }

  drawHeadlines({ totals, what_if: more, in_flight: running, pace, pools, drafts }) {
    const prompt = totals.prompt ?? 0;
    const possible = prompt - (totals["lost.new"] ?? 0) - (totals["lost.unscheduled"] ?? 0);
    find("headline").textContent = prompt
      ? `${percent(totals.usable ?? 0, prompt)} of ${count(prompt)} prompt tokens were usable, `
        + `${percent(possible, prompt)} had been seen before; ${running} requests are running.`
      : "No request has ended yet.";
    find("what-if").textContent = more.slots
      ? `+${count(more.slots)} slots would recover ${more.points.toFixed(1)} points `
        + `(${count(more.tokens)} of the last ${count(more.of_tokens)} prompt tokens).${roomBelow(more, pools)}`
      : "";
    find("pace").textContent = pace.ended
      ? `In the last minute ${count(pace.ended)} requests ended: first token after ${seconds(pace.first_token_seconds)}, `
        + `each one after it ${seconds(pace.per_token_seconds)} (medians), ${pace.tokens_per_second.toFixed(1)} tokens a second.`
      : "";
    find("drafts").textContent = draftsOf(drafts ?? {});
    find("queue").textContent = pools ? [queueOf(pools.requests ?? {}), peersOf(pools.prefill_nodes ?? {})].filter(Boolean).join(" ") : "";
  }

  drawTotals(totals) {
    const prompt = totals.prompt ?? 0;
    const rows = [
      ["prompt", "prompt", "tokens of requests that ended"],
      ["usable", "usable", "not computed again"],
      ...CAUSES.map(([name, text]) => [`lost.${name}`, name, text]),
    ];
    find("totals").replaceChildren(element("tbody", {}, ...rows.map(([key, name, text]) => {
      const value = totals[key] ?? 0;
      return element("tr", {},
        element("td", {}, element("i", { class: `swatch ${name}` }), name),
        element("td", { "data-total": key, "data-value": value }, count(value)),
        element("td", {}, percent(value, prompt)),
        element("td", { class: "text" }, text));
    })));
  }

  // Bytes of the arena and of each tier below it.
  drawTiers(pools) {
    const places = placesOf(pools);
    find("tiers").replaceChildren(...(places.length ? [
      element("thead", {}, element("tr", {}, ...["", "in use", "of", "loaded", "written"].map((title) => element("th", { scope: "col" }, title)))),
      element("tbody", {}, ...places.flatMap(({ name, used, size, loaded, written, text }) => [
        element("tr", { "data-tier": name }, element("td", {}, name), element("td", { "data-value": used }, bytes(used)), element("td", { "data-value": size }, bytes(size)),
          ...[loaded, written].map((value) => element("td", value === undefined ? {} : { "data-value": value }, value === undefined ? "-" : bytes(value)))),
        element("tr", { class: "words" }, element("td", { class: "text", colspan: 5 }, text)),
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
    const head = element("tr", {}, ...["", ...kinds, ""].map((title) => element("th", { scope: "col" }, title)));
    find("pools").replaceChildren(
      element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows, total)),
      element("p", {}, `${count(pools.tree.nodes ?? 0)} nodes, ${count(pools.tree.checkpoints ?? 0)} checkpoints, `
        + `policy ${pools.policy || "-"}, integrity: ${pools.integrity}`),
    );
    this.drawTiers(pools);
  }
}

// A recording from before a slab's size was known has none.
function placesOf({ slabs, slab_bytes: slab, tiers = [] }) {
  if (!slab) return [];
  const whole = (slabs.free ?? 0) + (slabs.pages ?? 0) + (slabs.slots ?? 0);
  const below = tiers.map((tier) => ({
    name: tier.name, used: (tier.slabs.total - tier.slabs.free) * tier.slab_bytes, size: tier.slabs.total * tier.slab_bytes,
    loaded: tier.bytes.loaded ?? 0, written: tier.bytes.written ?? 0, text: tierWords(tier),
  }));
  return [{ name: "arena", used: (whole - (slabs.free ?? 0)) * slab, size: whole * slab, text: "what prompts are computed in and resume from" }, ...below];
}

// As much memory in the host. A tier keeps what stands above it too, so that the first one begins with the arena's size.
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

// A node that drafts nothing has nothing to say, nor has a recording from before there were drafts.
function draftsOf(drafts) {
  return Object.entries(drafts).map(([source, of]) => `Drafted: ${count(of.drafted)} tokens by ${source}, of which ${percent(of.accepted, of.drafted)} held. `
    + `With at most 1, 2 ... drafts a step would have given ${of.tokens_a_step.map((tokens) => tokens.toFixed(2)).join(", ")} tokens.`).join(" ");
}

// The engine's requests by state, in words.
function queueOf(requests) {
  const states = Object.entries(requests).filter(([, number]) => number);
  return states.length ? `In the engine: ${states.map(([state, number]) => `${count(number)} ${state}`).join(", ")}.` : "Nothing waits or runs in the engine.";
}

// Of a node without prefill nodes there is nothing to say.
function peersOf(nodes) {
  const states = Object.entries(nodes).filter(([, number]) => number);
  return states.length ? `Prefill nodes: ${states.map(([state, number]) => `${count(number)} ${state}`).join(", ")}.` : "";
}
