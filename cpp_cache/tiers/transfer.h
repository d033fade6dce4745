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

// What is to be copied down, as ids. from: nullopt for the arena.
struct TierWrite {
  TransferId id;
  std::optional<TierId> from;
  TierId to;
  std::vector<std::pair<PageId, PageId>> pages{};  // from, to; a tail's page is the last
  std::pair<SlotId, SlotId> slot;
};

// What is to be loaded for an allocation: into its own pages and its first working slot.
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
  std::int64_t boundary;  // tokens behind which the state stands
};

// What a write brings, by its tokens: enough to know it again after a restart.
struct WriteLabel {
  std::string salt;
  std::int64_t start = 0;         // tokens before what is copied
  std::optional<PageId> above{};  // the tier's page that ends there
  std::vector<Token> tokens{};    // from there to the state
  CheckpointKind kind{};
};

// A state that a tier has from before a restart, with all KV of its path.
struct KeptState {
  std::string_view salt;
  Tokens tokens;
  std::vector<PageId> pages{};  // in logical order; a tail's page is the last
  SlotId slot;
  CheckpointKind kind;
};

// A state that a tier has from now on, with all KV of its path, since somebody else wrote it there.
struct AdoptedState {
  std::vector<PageId> pages{};  // of the path, in logical order; a tail's page is the last
  std::int64_t first_new = 0;   // the pages before it the tier had already
  SlotId slot{};
};

// A state and the runs of its path that the tier lacked.
struct WriteInFlight {
  std::optional<TierId> from;
  TierId to;
  StateKey state;
  std::vector<NodeId> runs{};  // from the root down
  std::int64_t pages = 0;      // that are copied
  bool is_abandoned = false;   // the ids below are held until the last acknowledgement
  std::vector<TierIds> orphans{};
};

// What a load keeps where it is.
struct LoadInFlight {
  AllocationId allocation;
  TierId from;  // of the state
  StateKey state;
  std::vector<std::pair<TierId, NodeId>> runs{};  // the deepest that is read of each tier
  std::array<std::int64_t, kMostTiers> pages{};   // by tier
  bool is_abandoned = false;                      // it keeps nothing any more
};

}  // namespace tasuki::cache
