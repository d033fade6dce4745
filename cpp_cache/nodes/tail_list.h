// Tails of a node: present and former runs inside its following page.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/checkpoint_kind.h"
#include "core/ids.h"
#include "nodes/run_trie.h"

namespace tasuki::cache {

// The state of all GDN layers after exactly `boundary` tokens of its path. Immutable once inserted.
struct Checkpoint {
  SlotId slot;
  CheckpointKind kind;
  std::int64_t boundary;
  Tick last_use;
  bool probationary = false;  // see EvictionItem
  std::int32_t pins = 0;      // allocations forked from it, or with its tail's page
};

// Tiers below the arena with a state, and its kind while there are any.
struct StateBelow {
  TierBits tiers : 4 = 0;
  std::uint8_t kind : 4 = 0;

  CheckpointKind checkpoint_kind() const { return static_cast<CheckpointKind>(kind); }
};

// Fewer than a page of tokens after a node's end: their KV in one page, and the state after the
// last.
struct Tail {
  TailId id;
  std::vector<Token> tokens;
  std::optional<PageId> page;       // nullopt: not in the arena
  std::optional<Checkpoint> state;  // nullopt: not in the arena
  Tick ghost_since = 0;
  StateBelow below{};  // page and state

  bool resident() const { return page.has_value(); }
  bool is_ghost() const { return !resident() && below.tiers == 0; }
};

// Weights of a node's tails when they were last listed: see StateWorth.
struct TailWeighing {
  std::int64_t above = 0;        // tokens of the nearest state above them
  std::int64_t pages_alone = 0;  // needed by the path to the one tail only; 0 with more tails

  bool operator==(const TailWeighing&) const = default;
};

// Owns the tails of one node, ghosts included. Many short answers may end behind one system prompt.
// So only a walk over all of them costs more than O(log n). Costs one pointer while it is empty. A
// tail stays at its address until it is dropped.
//
// Invariants: no two tails have the same tokens. A tail is found among the resident ones exactly
// while it is resident. A walk is in the order of ids.
class TailList {
 public:
  using ById = std::map<TailId, Tail>;
  using Iterator = ById::const_iterator;

  bool empty() const { return body_ == nullptr; }
  std::int64_t size() const { return body_ ? static_cast<std::int64_t>(body_->tails.size()) : 0; }
  std::int64_t resident() const { return body_ ? body_->resident : 0; }
  Iterator begin() const { return body_ ? body_->tails.begin() : Iterator(); }
  Iterator end() const { return body_ ? body_->tails.end() : Iterator(); }

  const Tail* find(TailId id) const;
  // Find a resident tail.
  const Tail* find(PageId page) const;
  const Tail* find(Tokens tokens) const;
  // Return the number of tokens at the start of `run` shared with the nearest resident tail.
  std::int64_t common_with(Tokens run) const;
  // Visit the tails with tokens that are a prefix of `run`: resident ones, then ghosts, shortest
  // first.
  template <typename Visit>
  void for_each_start(Tokens run, Visit visit) const {
    for_each_resident_start(run, visit);
    if (body_) body_->gone.for_each_start(run, tokens_of, [&](const Tail* tail) { visit(*tail); });
  }
  template <typename Visit>
  void for_each_resident_start(Tokens run, Visit visit) const {
    if (!body_) return;
    body_->standing.for_each_start(run, tokens_of, [&](const Tail* tail) { visit(*tail); });
  }

  // REQUIRES: it is resident, younger than all others, and none has its tokens.
  void add(Tail tail);
  // Add a tail present only below the arena. REQUIRES: it is younger than all others, and none has
  // its tokens.
  void add_gone(Tail tail);
  // The state of a resident tail. REQUIRES: there is such a tail.
  Checkpoint& state(TailId id) { return *body_->tails.at(id).state; }
  // REQUIRES: a resident tail has the page `from`.
  void move_page(PageId from, PageId to);
  void set_below(TailId id, StateBelow below) { body_->tails.at(id).below = below; }
  // REQUIRES: it is not resident.
  void revive(TailId id, PageId page, const Checkpoint& state);
  void mark_ghost(TailId id, Tick now) { body_->tails.at(id).ghost_since = now; }
  // Make the tail non-resident. Returns its page and slot. REQUIRES: it is resident.
  std::pair<PageId, SlotId> evict(TailId id, Tick now);
  // REQUIRES: it is a ghost.
  void forget(TailId id);

  const std::optional<TailWeighing>& weighed() const { return body_->weighed; }
  // REQUIRES: not empty.
  void set_weighed(const std::optional<TailWeighing>& weighed) { body_->weighed = weighed; }

 private:
  using Trie = RunTrie<const Tail*>;
  struct Body {
    ById tails{};
    Trie standing{};
    Trie gone{};
    std::map<PageId, TailId> pages{};
    std::int64_t resident = 0;
    std::optional<TailWeighing> weighed{};
  };

  static Tokens tokens_of(const Tail* tail) { return tail->tokens; }
  static const Tail* exact(const Trie& trie, Tokens tokens);

  std::unique_ptr<Body> body_;
};

}  // namespace tasuki::cache
