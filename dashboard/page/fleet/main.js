// Joins the fleet's views. Requests the sums and the shown view every few seconds while the page is
// visible.

import { KeyWanted, load, useKey } from "../api.js";
import { find } from "../dom.js";
import { clock } from "../format.js";
import { Tabs } from "../tabs.js";
import { CallerView } from "./callers.js";
import { LinkView } from "./links.js";
import { NodeView } from "./nodes.js";
import { Summary } from "./summary.js";

const EVERY_MS = 3000;

const summary = new Summary();
const views = { nodes: new NodeView(refresh), links: new LinkView(), callers: new CallerView() };
const filter = find("filter");
let tabs = null;
let asked = 0;
let timer = null;

// The filter is kept in the tab's memory, for the way back from a node's page.
filter.value = sessionStorage.getItem("tasuki-filter") ?? "";

async function refresh() {
  if (!tabs) return;
  const number = (asked += 1);
  clearTimeout(timer);
  try {
    const [sums, view] = await Promise.all([load("/fleet/summary"), load(views[tabs.current].path(filter.value))]);
    // A newer request's answer is drawn in place of this one.
    if (number !== asked) return;
    summary.draw(sums);
    views[tabs.current].draw(view, sums);
    find("live").textContent = `as of ${clock(sums.at)}`;
    document.body.dataset.at = sums.at;
  } catch (error) {
    if (number !== asked) return;
    if (error instanceof KeyWanted) { find("live").textContent = "this page requires its key"; find("key").hidden = false; return; }
    find("live").textContent = `no answer: ${error.message}`;
  }
  timer = setTimeout(() => { if (!document.hidden) refresh(); }, EVERY_MS);
}

tabs = new Tabs(find("tabs"), refresh);
refresh();
filter.addEventListener("input", () => {
  sessionStorage.setItem("tasuki-filter", filter.value);
  views.nodes.offset = 0;
  refresh();
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });
find("key").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(new FormData(event.target).get("key"));
  find("key").hidden = true;
  refresh();
});
