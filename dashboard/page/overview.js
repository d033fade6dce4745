// The first view: the hit waterfall, what more room would recover, and both kinds in the arena.

import { element, find, legend } from "./dom.js";
import { count, percent } from "./format.js";
import { StackPlot } from "./stack.js";
import { CAUSES, OWNERS } from "./words.js";

export class Overview {
  constructor() {
    this.waterfall = new StackPlot(find("waterfall"), ["usable", ...CAUSES.map(([name]) => name)]);
    this.slots = new StackPlot(find("slots"), OWNERS.map(([name]) => name));
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

  drawHeadlines({ totals, what_if: more, in_flight: running }) {
    const prompt = totals.prompt ?? 0;
    const possible = prompt - (totals["lost.new"] ?? 0) - (totals["lost.unscheduled"] ?? 0);
    find("headline").textContent = prompt
      ? `${percent(totals.usable ?? 0, prompt)} of ${count(prompt)} prompt tokens were usable, `
        + `${percent(possible, prompt)} had been seen before; ${running} requests are running.`
      : "No request has ended yet.";
    find("what-if").textContent = more.slots
      ? `+${count(more.slots)} slots would recover ${more.points.toFixed(1)} points `
        + `(${count(more.tokens)} of the last ${count(more.of_tokens)} prompt tokens).`
      : "";
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

  drawPools(pools) {
    const rows = ["slots", "pages"].map((pool) => {
      const owners = pools[pool];
      const whole = OWNERS.reduce((sum, [name]) => sum + owners[name], 0);
      return element("tr", {},
        element("td", {}, pool),
        ...OWNERS.map(([name]) => element("td", { "data-pool": pool, "data-owner": name, "data-value": owners[name] },
          count(owners[name]))),
        element("td", {}, count(whole)));
    });
    const titles = ["", ...OWNERS.map(([name]) => name.replace("_", " ")), "total"];
    const head = element("tr", {}, ...titles.map((title) => element("th", { scope: "col" }, title)));
    find("pools").replaceChildren(
      element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)),
      element("p", { class: "legend" }, ...legend(OWNERS.map(([name, text]) => [name, `${name}: ${text}`]))),
      element("p", {}, `${count(pools.tree.nodes ?? 0)} nodes, ${count(pools.tree.checkpoints ?? 0)} checkpoints, `
        + `policy ${pools.policy || "-"}, integrity: ${pools.integrity}`),
    );
  }
}
