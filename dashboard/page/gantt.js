// One hand-over, as seen by both sides: layers as the forward finished them, layer chunks as they
// were posted and flushed, arrivals and waits. Also the pull before it, if any; its layers were
// finished long before. Two tracks with an axis each, because clocks of two hosts are never
// subtracted.

import { load } from "./api.js";
import { element, find, legend, shape } from "./dom.js";
import { bytes, clock, count, percent, seconds } from "./format.js";
import { HeldRows } from "./held_rows.js";
import { drawTable, markChosen } from "./table.js";

const NARROWEST = 320;
const LEFT = 20;
const LINE = 9;

const COLUMNS = [
  ["request", (row) => row.request, true],
  ["ended", (row) => clock(row.ended_at)],
  ["took", (row) => seconds(total(row.usage.transfer))],
  ["from", (row) => row.usage.prefilled_on],
  ["bytes", (row) => bytes(row.usage.transfer.bytes)],
  ["hidden", (row) => percent(row.usage.transfer.hidden_seconds, total(row.usage.transfer))],
];

const total = (transfer) => transfer.hidden_seconds + transfer.exposed_seconds;

export class HandoverView {
  constructor() {
    this.chosen = null;
    this.rows = new HeldRows(find("newer-handovers"), (row) => row.request, (rows) => this.drawRows(rows));
  }

  async refresh() {
    this.rows.take(await load("/debug/handovers"));
  }

  drawRows(rows) {
    drawTable(find("handover-rows"), COLUMNS, rows, (row) => row.request,
      "No hand-over is remembered: nothing was prefilled on another node of late.", (name) => this.choose(name));
    markChosen(find("handover-rows"), this.chosen);
  }

  async choose(name) {
    this.chosen = name;
    this.rows.hold();
    markChosen(find("handover-rows"), name);
    const record = await load(`/debug/requests/${encodeURIComponent(name)}`);
    const { transfer, pulled } = record.usage;
    if (!transfer.timeline) { find("gantt").textContent = "Its timeline is forgotten."; return; }
    find("gantt").replaceChildren(
      element("h2", {}, `${record.request}: ${bytes(transfer.bytes)} in ${count(transfer.windows)} windows, `
        + `${seconds(transfer.hidden_seconds)} hidden, ${seconds(transfer.exposed_seconds)} exposed`),
      element("p", { class: "legend" }, ...legend([["tick", "layer finished"], ["hidden-time", "sent beside the forward"],
        ["exposed-time", "sent after it"], ["landed", "landed, then digested"], ["wait", "waited at the layer barrier"]])),
      element("h2", {}, "Sender"), sender(transfer.timeline.sender),
      element("h2", {}, "Receiver"), receiver("receiver", transfer.timeline.receiver),
      ...(pulled?.timeline ? pull(pulled) : []),
    );
  }
}

function pull(pulled) {
  return [
    element("h2", {}, `Pulled before: ${count(pulled.tokens)} tokens, ${bytes(pulled.bytes)} in ${seconds(pulled.seconds)}`),
    element("p", { class: "legend" }, ...legend([["exposed-time", "sent"], ["landed", "landed, then digested"]])),
    element("h2", {}, "Giver"), giver(pulled.timeline.sender),
    element("h2", {}, "Puller"), receiver("puller", pulled.timeline.receiver),
  ];
}

const titleOf = (window) => `window ${window.sequence}: layers ${window.first_layer} to `
  + `${window.first_layer + window.layers_finished.length - 1}, `
  + `${window.pages} pages${window.carries_state ? " and state" : ""}, ${bytes(window.bytes)}`;
const lastFlush = (track) => Math.max(0, ...track.windows.map((window) => window.flushed_at));

function sender(track) {
  const ticks = track.windows.flatMap((window) => window.layers_finished);
  const forwardEnd = Math.max(0, ...ticks);
  const bars = track.windows.map((window) => ({
    marks: window.layers_finished,
    parts: [
      ["hidden-time", window.begun_at, Math.min(window.flushed_at, forwardEnd)],
      ["exposed-time", Math.max(window.begun_at, forwardEnd), window.flushed_at],
    ],
    title: titleOf(window),
  }));
  return drawTrack("sender", track.phases, bars, Math.max(forwardEnd, lastFlush(track)));
}

// A pull has no forward to hide behind.
function giver(track) {
  const bars = track.windows.map((window) => ({
    marks: [], parts: [["exposed-time", window.begun_at, window.flushed_at]], title: titleOf(window),
  }));
  return drawTrack("giver", track.phases, bars, lastFlush(track));
}

function receiver(name, track) {
  const bars = [
    ...track.windows.map((window) => ({
      marks: [], title: `window ${window.sequence}`, parts: [["landed", window.landed_at, window.verified_at]],
    })),
    ...track.waits.map((wait) => ({
      marks: [], title: `waited for layer ${wait.layer}`, parts: [["wait", wait.began_at, wait.ended_at]],
    })),
  ];
  return drawTrack(name, track.phases, bars, Math.max(0, ...bars.map((bar) => bar.parts[0][2])));
}

function drawTrack(name, phases, bars, end) {
  // As wide as its place, so its words have the size of the page's.
  const width = Math.max(NARROWEST, find("gantt").clientWidth);
  const last = Math.max(end, 1e-6, ...phases.map((phase) => phase.at));
  const x = (at) => LEFT + ((width - 2 * LEFT) * at) / last;
  const top = 42;
  const height = top + LINE * bars.length + 18;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "data-track": name, "aria-label": `Timeline of the ${name}` });
  phases.forEach((phase, index) => {
    svg.append(shape("line", { x1: x(phase.at), x2: x(phase.at), y1: 12, y2: height - 16, class: "phase" }),
      shape("text", { x: Math.min(x(phase.at), width - 60), y: 11 + 11 * (index % 3), "data-phase": phase.phase }, phase.phase));
  });
  bars.forEach(({ parts, marks, title }, index) => {
    const y = top + LINE * index;
    const group = shape("g", { "data-window": index });
    group.append(shape("title", {}, title));
    for (const [kind, from, to] of parts) {
      if (to > from) group.append(shape("rect", { x: x(from), y, width: Math.max(1, x(to) - x(from)), height: LINE - 1, class: kind }));
    }
    for (const at of marks) group.append(shape("rect", { x: x(at) - 0.75, y, width: 1.5, height: LINE - 1, class: "tick" }));
    svg.append(group);
  });
  svg.append(shape("text", { x: LEFT, y: height - 4 }, "0"),
    shape("text", { x: width - LEFT, y: height - 4, "text-anchor": "end" }, seconds(last)));
  return svg;
}
