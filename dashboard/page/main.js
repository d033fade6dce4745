// Joins the views with the stream of the node's overview. A view loads its own data when it is
// shown and after new events. So a page without a viewer costs the node one small message a second.

import { follow, KeyWanted, useKey } from "./api.js";
import { find } from "./dom.js";
import { duration } from "./format.js";
import { FaultView } from "./faults.js";
import { HandoverView } from "./gantt.js";
import { Figures } from "./node_figures.js";
import { Overview } from "./overview.js";
import { RequestView } from "./requests.js";
import { SessionView } from "./sessions.js";
import { Tabs } from "./tabs.js";
import { TreeView } from "./tree.js";

const RETRY_MS = 2000;
const SECOND_MS = 1000;
// A reachable node sends something every five seconds.
const SILENT_SECONDS = 8;
// A bar of the curves is five seconds wide.
const STREAM = "/debug/stream?seconds=300&points=60";

const figures = new Figures();
const overview = new Overview();
const views = {
  tree: new TreeView(), sessions: new SessionView(), requests: new RequestView(),
  handovers: new HandoverView(), faults: new FaultView(),
};
let state = null;
let taken = 0; // time of its arrival
const tabs = new Tabs(find("tabs"), show);

function show(name) {
  if (name === "overview") { if (state) overview.draw(state); return; }
  views[name].refresh().catch((error) => showStatus(error.message));
}

function showStatus(text) {
  // Screen readers read text out again when it is written again.
  if (find("live").textContent !== text) find("live").textContent = text;
}

function drawHead({ node, role, version = "", model = "", started_at: started }, now) {
  // A checkout without installation has no version.
  find("node").textContent = version.startsWith("(") ? node : `${node} ${version}`;
  find("about").textContent = [role, model, location.host, started ? `up ${duration(now - started)}` : ""].filter(Boolean).join(", ");
  document.title = `${node} at ${location.host} - tasuki`;
}

function take(next) {
  const happened = !state || next.ended !== state.ended || next.in_flight !== state.in_flight || JSON.stringify(next.faults) !== JSON.stringify(state.faults);
  state = next;
  taken = performance.now();
  figures.draw(state);
  drawHead(next.about, next.at);
  views.tree.role = next.about.role;
  showStatus(next.about.recorded ? `recorded ${next.about.recorded}` : "live");
  document.body.dataset.ended = next.ended;
  if (tabs.current === "overview" || happened) show(tabs.current);
}

async function live() {
  for (;;) {
    try {
      await follow(STREAM, take);
    } catch (error) {
      if (error instanceof KeyWanted) { showStatus("this node requires its key"); find("key").hidden = false; return; }
      showStatus(`no answer: ${error.message}`);
    }
    await new Promise((again) => setTimeout(again, RETRY_MS));
  }
}

// Between two messages the figures' age is shown.
function age() {
  if (!state || state.about.recorded) return;
  const silent = (performance.now() - taken) / SECOND_MS;
  figures.drawTiles(state, silent);
  if (silent > SILENT_SECONDS) showStatus(`no news for ${Math.round(silent)} s`);
}

setInterval(age, SECOND_MS);

find("key").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(new FormData(event.target).get("key"));
  find("key").hidden = true;
  live();
});
live();
