// The last requests, and one request's story.

import { load } from "./api.js";
import { describe, find } from "./dom.js";
import { bytes, clock, count, percent, seconds } from "./format.js";
import { HeldRows } from "./held_rows.js";
import { drawTable, markChosen } from "./table.js";

const COLUMNS = [
  ["request", (row) => row.request, true],
  ["caller", (row) => row.caller || "-", true],
  ["ended", (row) => (row.ended_at === null ? "-" : clock(row.ended_at))],
  ["how", (row) => endOf(row)],
  ["prompt", (row) => count(prompt(row)) + picturesOf(row.usage?.pictures)],
  ["usable", (row) => (row.ended_at === null ? "-" : percent(hit(row)?.usable_tokens ?? 0, prompt(row)))],
  ["answer", (row) => (row.usage ? count(row.usage.completion_tokens) : "-")],
  ["queued", (row) => seconds(row.queued_seconds)],
  ["first token", (row) => seconds(row.usage?.time_to_first_token)],
  ["prefilled on", (row) => row.usage?.prefilled_on ?? "-"],
];

// A running request has no end yet.
function endOf(row) {
  if (row.ended_at === null) return "in progress";
  return row.reason ?? row.error?.kind ?? (row.handed_on ? "handed on" : "given up");
}

const hit = (row) => row.usage?.hit ?? row.hit;
const prompt = (row) => row.usage?.prompt_tokens ?? row.prompt_tokens ?? 0;

export class RequestView {
  constructor() {
    this.chosen = null;
    this.rows = new HeldRows(find("newer-requests"), keyOf, (rows) => this.drawRows(rows));
  }

  async refresh() {
    this.rows.take(await load("/debug/requests"));
  }

  drawRows(rows) {
    drawTable(find("request-rows"), COLUMNS, rows, keyOf, "No request has come yet.", (name) => this.choose(name));
    markChosen(find("request-rows"), this.chosen);
    const row = rows.find((one) => keyOf(one) === this.chosen);
    if (row && this.unended && row.ended_at !== null) this.choose(this.chosen);
  }

  async choose(name) {
    this.chosen = name;
    this.rows.hold();
    markChosen(find("request-rows"), name);
    const row = this.rows.latest.find((one) => keyOf(one) === name);
    this.unended = row?.ended_at === null;
    showRequest(find("request"), this.unended ? row : await load(`/debug/requests/${encodeURIComponent(name)}`));
  }
}

const keyOf = (row) => row.request;

function showRequest(list, row) {
  const found = hit(row);
  const lost = found?.lost;
  const transfer = row.usage?.transfer;
  describe(list, [
    ["request", row.request],
    ["session", row.session],
    ["caller", row.caller || null],
    ["arrived", clock(row.arrived_at)],
    ["ended", row.ended_at === null ? "not yet: its story is told at its end" : `${clock(row.ended_at)}, ${endOf(row)}`],
    ["queued", row.queued_seconds == null ? null : seconds(row.queued_seconds)],
    ["refused", row.error?.message ?? null],
    ["prompt", `${count(prompt(row))} tokens`],
    ["found", found ? `${count(found.kv_tokens)} with KV, ${count(found.usable_tokens)} usable`
      + (found.checkpoint_source ? `, from the state of a ${found.checkpoint_source.replace("_", " ")}` : "") : row.ended_at === null ? null : "never looked up"],
    ...Object.entries(found?.causes ?? {}).filter(([, tokens]) => tokens).map(([cause, tokens]) => [cause, count(tokens)]),
    ...(row.usage?.pictures?.each ?? []).map((picture) => [picture.place || `picture at ${count(picture.start)}`, pictureOf(picture)]),
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

// The pictures of a prompt, counted by outcome; nothing without any.
function picturesOf(report) {
  const outcomes = Object.entries(report?.outcomes ?? {});
  const words = outcomes.map(([outcome, number]) => `${count(number)} ${outcome}`).join(", ");
  return words && `, pictures: ${words}`;
}

// One picture: its outcome, its size, and the time of each stage it needed.
function pictureOf(picture) {
  const stages = ["decode", "resize", "tower", "wait"].filter((stage) => picture[`${stage}_seconds`]);
  const times = stages.map((stage) => `, ${stage} ${seconds(picture[`${stage}_seconds`])}`);
  return `${picture.outcome}: ${count(picture.tokens)} tokens, ${bytes(picture.bytes)}${times.join("")}`;
}

// The choice and its basis: the expected seconds of each way.
function routeOf(route) {
  const expected = Object.entries(route.estimates).map(([way, value]) => `${way} ${seconds(value)}`);
  return expected.length ? `${route.choice} (expected: ${expected.join(", ")})` : route.choice;
}

function wantedOf(targets) {
  const named = [["the first token", targets?.first_token], ["each after it", targets?.per_token], ["the answer", targets?.answer]];
  return named.filter(([, within]) => within != null).map(([what, within]) => `${what} ${seconds(within)}`).join(", ") || null;
}
