// Events of the tree for watchers. Plain values, valid after the tree's end.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/ids.h"
#include "core/match.h"
#include "events/prefix_hash.h"

namespace tasuki::cache {

enum class EventKind : std::uint8_t {
  kPageStored,
  kPageRemoved,
  kCheckpointStored,  // a tail's partial page comes and goes with it
  kCheckpointRemoved,
  kCleared,          // nothing exists any more
  kCheckpointMoved,  // it is elsewhere now: a load brings it, or is not needed any more
};

enum class EventStream : std::uint8_t {
  kAll,
  kUsable,   // only prefixes with a state, and its place, because only they save prefill; no pages
  kSpelled,  // all, and the tokens of each stored page: for routers with their own hashes
};

// nullopt: unknown name.
std::optional<EventStream> stream_named(std::string_view name);
std::string_view name_of(EventKind kind);

struct CacheEvent {
  std::uint64_t sequence;  // number in its stream: 1, 2, 3, ...; in a snapshot the batch's number
  EventKind kind;
  std::optional<CheckpointKind> checkpoint{};  // set in kCheckpointStored
  std::int64_t tokens = 0;                     // tokens of the prefix, from the start
  PrefixHash prefix{};
  PrefixHash parent{};  // prefix of the whole pages before the last page or partial page
  PrefixHash root{};    // the empty prefix: names the namespace, and reveals nothing of its salt
  // In kCheckpointStored and kCheckpointMoved: the nearest place, 0 for the arena, then the tiers.
  std::uint8_t place = 0;
  std::vector<Token> page{};  // set in kPageStored of kSpelled
};

// The watcher was too slow: changes first_lost up to resync_from are never reported one by one.
struct EventGap {
  std::uint64_t first_lost;
  std::uint64_t resync_from;
};

// The changes since the last batch, in order, or a snapshot. A snapshot is the whole tree as
// *_stored events, parents first, and replaces the watcher's state. The first batch is a snapshot,
// and so is one with a gap.
struct EventBatch {
  std::uint64_t sequence = 0;  // number of the last reported change
  bool is_snapshot = false;
  std::optional<EventGap> gap{};
  std::vector<CacheEvent> events{};
};

}  // namespace tasuki::cache
