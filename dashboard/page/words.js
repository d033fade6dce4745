// The names of the shown parts, in stacking order, and their meanings. A name is also its colour's
// class in page.css.

export const CAUSES = [
  ["new", "never seen before"],
  ["not_pulled", "cached here, computed elsewhere"],
  ["never_checkpointed", "KV cached, no state kept this deep"],
  ["checkpoint_evicted", "its state had to make room"],
  ["kv_evicted", "its KV had to make room"],
  ["alignment", "in a page cached in part"],
  ["in_flight", "being computed by another"],
  ["load_declined", "below the arena, cheaper to compute"],
  ["load_failed", "to be loaded, and late or wrong"],
  ["template_changed", "rendered otherwise than the turn before"],
  ["unscheduled", "ended before it was looked up"],
];

export const OWNERS = [
  ["working", "held by running requests"],
  ["pinned", "the tree's, in use"],
  ["evictable", "the tree's, may make room"],
  ["in_transfer", "granted to a sender"],
  ["quarantined", "awaiting a fence"],
  ["free", "nobody's"],
];

// Use of the arena's memory, in bytes. The names are the same on every page, in the log and in
// `tasuki top`.
export const MEMORY = [
  ["in_use", "held by requests and hand-overs, cannot make room"],
  ["cached", "kept for later prompts, makes room where it is needed"],
  ["free", "nobody's"],
];
