// The fault ledger: the count of each fault, and the last times of it.

import { load } from "./api.js";
import { find } from "./dom.js";
import { clock, count } from "./format.js";
import { drawTable } from "./table.js";

// The end of another entry, not a fault.
const RECOVERED = "peers_up";

export class FaultView {
  async refresh() {
    const { counts, entries } = await load("/debug/faults");
    drawTable(find("fault-counts"), [["kind", ([kind]) => kind, true], ["times", ([, times]) => count(times)]],
      Object.entries(counts).filter(([kind]) => kind !== RECOVERED).sort(([, one], [, other]) => other - one), ([kind]) => kind,
      "Nothing has gone wrong since the start.");
    drawTable(find("fault-rows"), [
      ["at", (row) => clock(row.at)],
      ["kind", (row) => row.kind, true],
      ["of", (row) => row.subject, true],
      ["what", (row) => row.text, true],
    ], entries, (row) => `${row.at} ${row.kind} ${row.subject}`, "Nothing has gone wrong of late.");
  }
}
