// Trie over short runs of tokens, searched by common start.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "core/common_tokens.h"
#include "core/ids.h"

namespace tasuki::cache {

// A Patricia tree. Owns one leaf per run, never the runs: `run_of(leaf)` returns the caller's
// tokens. Costs one pointer while it is empty.
//
// Invariants: no two runs are equal, and none changes while it is in. A run's bits are, for each
// token position, one presence bit, then the token from its highest bit down. A fork is at the
// first bit in which its runs differ; deeper forks are at later bits. So the leaf reached by a
// run's own bits shares the longest start with it. Exactly one of the runs below a fork at a
// presence bit ends there: their common start.
//
// Cost: the forks on one path, about log2 of the runs and never more than their bits; the tokens of
// one leaf are read.
template <typename Leaf>
class RunTrie {
 public:
  bool empty() const { return body_ == nullptr; }

  // Return the leaf with the longest common start; none if it is empty.
  std::optional<Leaf> nearest(Tokens run) const {
    if (!body_) return std::nullopt;
    return leaf_by(run);
  }

  // Visit the leaves with runs that are a prefix of `run`, shortest first.
  template <typename RunOf, typename Visit>
  void for_each_start(Tokens run, RunOf run_of, Visit visit) const {
    if (!body_) return;
    const Leaf last = leaf_by(run);
    const auto last_run = Tokens(run_of(last));
    const auto common = static_cast<std::size_t>(common_tokens(last_run, run));
    const Link* link = &body_->top;
    while (const Fork* fork = fork_of(*link)) {
      if (fork->at.token > common) return;
      const bool side = bit(run, fork->at);
      if (fork->at.bit == 0 && side) visit(std::get<Leaf>(fork->below[0]));
      link = &fork->below[side];
    }
    if (last_run.size() == common) visit(last);
  }

  // REQUIRES: no equal run is in.
  template <typename RunOf>
  void insert(Tokens run, Leaf leaf, RunOf run_of) {
    if (!body_) {
      body_ = std::make_unique<Body>(Body{leaf, {}, {}});
      return;
    }
    const Place parting = first_difference(run, Tokens(run_of(leaf_by(run))));
    Link* link = &body_->top;
    while (const Fork* fork = fork_of(*link)) {
      if (parting < fork->at) break;
      link = &body_->forks[std::get<ForkId>(*link)].below[bit(run, fork->at)];
    }
    Fork parted{{}, parting};
    const bool side = bit(run, parting);
    parted.below[side] = leaf;
    parted.below[!side] = *link;
    // New forks may move all of them, and with them the link.
    if (body_->spare) {
      const ForkId id = *body_->spare;
      Fork& reused = body_->forks[id];
      const auto* next = std::get_if<ForkId>(&reused.below[0]);
      body_->spare = *next == id ? std::nullopt : std::optional(*next);
      *link = id;
      reused = parted;
    } else {
      *link = static_cast<ForkId>(body_->forks.size());
      body_->forks.push_back(parted);
    }
  }

  // REQUIRES: it is in.
  void erase(Tokens run) {
    Link* above = nullptr;  // leads to the last fork
    Link* link = &body_->top;
    bool side = false;
    while (const auto* id = std::get_if<ForkId>(link)) {
      Fork& fork = body_->forks[*id];
      side = bit(run, fork.at);
      above = link;
      link = &fork.below[side];
    }
    if (above == nullptr) {
      body_.reset();
      return;
    }
    const ForkId gone = std::get<ForkId>(*above);
    Fork& fork = body_->forks[gone];
    *above = fork.below[!side];
    fork.below[0] = body_->spare.value_or(gone);  // the last spare one leads to itself
    body_->spare = gone;
  }

 private:
  using ForkId = std::uint32_t;
  using Link = std::variant<ForkId, Leaf>;

  // Position of a bit: the token's place, and one of its 33 bits.
  struct Place {
    std::uint16_t token;
    std::uint16_t bit;  // 0: presence; then from the highest bit down

    auto operator<=>(const Place&) const = default;
  };
  struct Fork {
    std::array<Link, 2> below;
    Place at;
  };
  struct Body {
    Link top;
    std::vector<Fork> forks;
    std::optional<ForkId> spare;
  };

  static bool bit(Tokens run, Place at) {
    if (at.token >= run.size()) return false;
    if (at.bit == 0) return true;
    return (static_cast<std::uint32_t>(run[at.token]) >> (32 - at.bit) & 1) != 0;
  }
  static Place first_difference(Tokens left, Tokens right) {
    const auto token = static_cast<std::size_t>(common_tokens(left, right));
    const auto place = static_cast<std::uint16_t>(token);
    if (token >= left.size() || token >= right.size()) return {place, 0};
    const auto differing = static_cast<std::uint32_t>(left[token] ^ right[token]);
    return {place, static_cast<std::uint16_t>(1 + std::countl_zero(differing))};
  }
  const Fork* fork_of(const Link& link) const {
    const auto* id = std::get_if<ForkId>(&link);
    return id ? &body_->forks[*id] : nullptr;
  }
  Leaf leaf_by(Tokens run) const {
    const Link* link = &body_->top;
    while (const Fork* fork = fork_of(*link)) link = &fork->below[bit(run, fork->at)];
    return std::get<Leaf>(*link);
  }

  std::unique_ptr<Body> body_;
};

}  // namespace tasuki::cache
