// The last requests, and one request's story.

import { load } from "./api.js";
import { describe, find } from "./dom.js";
import { bytes, clock, count, percent, seconds } from "./format.js";
import { drawTable } from "./table.js";

const COLUMNS = [
  ["request", (row) => row.request, true],
  ["ended", (row) => clock(row.ended_at)],
  ["how", (row) => row.reason ?? row.error?.kind ?? (row.handed_on ? "handed on" : "given up")],
  ["prompt", (row) => count(prompt(row))],
  ["usable", (row) => percent(hit(row)?.usable_tokens ?? 0, prompt(row))],
  ["answer", (row) => (row.usage ? count(row.usage.completion_tokens) : "-")],
  ["first token", (row) => seconds(row.usage?.time_to_first_token)],
  ["prefilled on", (row) => row.usage?.prefilled_on ?? "-"],
];

const hit = (row) => row.usage?.hit ?? row.hit;
const prompt = (row) => row.usage?.prompt_tokens ?? row.prompt_tokens ?? 0;

export class RequestView {
  async refresh() {
    drawTable(find("request-rows"), COLUMNS, await load("/debug/requests"), (row) => row.request,
      (name) => this.choose(name));
  }

  async choose(name) {
    const story = find("request");
    showRequest(story, await load(`/debug/requests/${encodeURIComponent(name)}`));
    // On a telephone it stands below up to two hundred rows.
    story.scrollIntoView({ block: "nearest" });
  }
}

function showRequest(list, row) {
  const found = hit(row);
  const lost = found?.lost;
  const transfer = row.usage?.transfer;
  describe(list, [
    ["request", row.request],
    ["session", row.session],
    ["refused", row.error?.message ?? null],
    ["prompt", `${count(prompt(row))} tokens`],
    ["found", found ? `${count(found.kv_tokens)} with KV, ${count(found.usable_tokens)} usable`
      + (found.checkpoint_source ? `, from the state of a ${found.checkpoint_source.replace("_", " ")}` : "") : "never looked up"],
    ...Object.entries(found?.causes ?? {}).filter(([, tokens]) => tokens).map(([cause, tokens]) => [cause, count(tokens)]),
    ["lost to", lost ? `${lost.eviction?.taken_by ?? "somebody forgotten"}: a state of ${count(lost.tokens)} tokens`
      + (lost.eviction?.score == null ? "" : `, held to be worth ${lost.eviction.score.toExponential(2)} a page`) : null],
    ["handed over", transfer ? `${bytes(transfer.bytes)} in ${transfer.windows} windows, ${seconds(transfer.exposed_seconds)} after the forward` : null],
    ["computed where", row.usage?.route ? routeOf(row.usage.route) : null],
    ["pulled", row.usage?.pulled ? `${count(row.usage.pulled.tokens)} tokens, ${bytes(row.usage.pulled.bytes)} in ${seconds(row.usage.pulled.seconds)}` : null],
    ["fell back", row.usage?.local_fallback ? "the hand-over was lost; its prompt was computed here" : null],
    ["wanted within", wantedOf(row.usage?.targets)],
    ["life", (row.life ?? []).map((mark) => `${mark.state} at ${seconds(mark.at)}`).join(", ") || null],
  ]);
}

// The choice and what it was made by: seconds expected of each way.
function routeOf(route) {
  const expected = Object.entries(route.estimates).map(([way, value]) => `${way} ${seconds(value)}`);
  return expected.length ? `${route.choice} (expected: ${expected.join(", ")})` : route.choice;
}

function wantedOf(targets) {
  const named = [["the first token", targets?.first_token], ["each after it", targets?.per_token], ["the answer", targets?.answer]];
  return named.filter(([, within]) => within != null).map(([what, within]) => `${what} ${seconds(within)}`).join(", ") || null;
}
