// A copy between two tiers, from the decision to its last acknowledgement.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/ids.h"
#include "tiers/lower_tier.h"

namespace tasuki::cache {

// Ids to copy down. from: nullopt for the arena.
struct TierWrite {
  TransferId id;
  std::optional<TierId> from;
  TierId to;
  std::vector<std::pair<PageId, PageId>> pages{};  // from, to; a tail's page is the last
  std::pair<SlotId, SlotId> slot;
};

// Ids to load for an allocation: into its own pages and its first working slot.
struct PageLoad {
  TierId from;
  PageId source;
  PageId target;
};
struct TierLoad {
  TransferId id;
  std::vector<PageLoad> pages{};  // in logical order; a tail's page is the last
  TierId state_from;
  SlotId source;
  SlotId target;
  std::int64_t boundary;  // tokens of the state
};

// A write's content by its tokens: enough to recognise it after a restart.
struct WriteLabel {
  std::string salt;
  std::int64_t start = 0;         // tokens before the copied part
  std::optional<PageId> above{};  // the tier's page before that part
  std::vector<Token> tokens{};    // tokens from there to the state
  CheckpointKind kind{};
};

// A state kept by a tier over a restart, with all KV of its path.
struct KeptState {
  std::string_view salt;
  Tokens tokens;
  std::vector<PageId> pages{};  // in logical order; a tail's page is the last
  SlotId slot;
  CheckpointKind kind;
};

// A state written to a tier by another node, with all KV of its path.
struct AdoptedState {
  std::vector<PageId> pages{};  // the path's pages, in logical order; a tail's page is the last
  std::int64_t first_new = 0;   // number of pages already in the tier
  SlotId slot{};
};

// A state and the runs of its path lacking in the tier.
struct WriteInFlight {
  std::optional<TierId> from;
  TierId to;
  StateKey state;
  std::vector<NodeId> runs{};  // from the root down
  std::int64_t pages = 0;      // number of copied pages
  bool is_abandoned = false;   // the ids below are held until the last acknowledgement
  std::vector<TierIds> orphans{};
};

// Entries kept in place by a load.
struct LoadInFlight {
  AllocationId allocation;
  TierId from;  // tier of the state
  StateKey state;
  std::vector<std::pair<TierId, NodeId>> runs{};  // deepest read run of each tier
  std::array<std::int64_t, kMostTiers> pages{};   // by tier
  bool is_abandoned = false;                      // it keeps nothing any more
};

}  // namespace tasuki::cache
