// Tests of a fleet's index against a map of each node's prefixes.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "fleet/fleet_index.h"

using namespace tasuki::cache;

namespace {

struct Checkpoint {
  PrefixHash prefix;
  PrefixHash parent;
  std::int64_t tokens;

  auto operator<=>(const Checkpoint&) const = default;
};

Checkpoint checkpoint_at(const std::vector<Token>& text, std::int64_t tokens) {
  const PrefixHasher hasher("salt");
  const Tokens prefix(text.data(), static_cast<std::size_t>(tokens));
  const std::size_t whole = prefix.size() / kPageTokens * kPageTokens;
  PrefixHash parent = hasher.root();
  PrefixHash end =
      hasher.over(hasher.root(), prefix.first(whole),
                  [&](const PrefixHash& before, const PrefixHash&) { parent = before; });
  if (whole == prefix.size()) return {end, parent, tokens};
  return {hasher.next(end, prefix.subspan(whole)), end, tokens};
}

// Few letters: texts begin alike and part at any token.
std::vector<Token> text_of(std::mt19937& random) {
  std::vector<Token> text(1 + random() % 300);
  const auto parted = random() % 300;
  for (std::size_t i = 0; i < text.size(); ++i)
    text[i] = i < parted ? 1 : static_cast<Token>(random() % 2);
  return text;
}

}  // namespace

TEST_CASE("holders are those of a map, through stores, removals and nodes that go") {
  std::mt19937 random(2211);
  FleetIndex index;
  std::map<std::uint16_t, std::map<Checkpoint, std::vector<Token>>> held;
  for (int round = 0; round < 3000; ++round) {
    const auto node = static_cast<std::uint16_t>(random() % 6);
    const auto text = text_of(random);
    const auto tokens = static_cast<std::int64_t>(1 + random() % text.size());
    const Checkpoint stored = checkpoint_at(text, tokens);
    const auto change = random() % 40;
    if (change == 0) {
      index.forget(FleetNode{node});
      held.erase(node);
    } else if (change < 25 || held[node].empty()) {
      index.store(FleetNode{node}, stored.prefix, stored.parent, stored.tokens);
      held[node].emplace(stored, std::vector<Token>(text.begin(), text.begin() + tokens));
    } else {
      const auto removed = held[node].begin()->first;
      index.remove(FleetNode{node}, removed.prefix, removed.parent, removed.tokens);
      held[node].erase(removed);
      index.remove(FleetNode{node}, removed.prefix, removed.parent, removed.tokens);
    }
    std::int64_t checkpoints = 0;
    for (const auto& [number, states] : held)
      checkpoints += static_cast<std::int64_t>(states.size());
    REQUIRE(index.checkpoints() == checkpoints);

    const auto prompt = text_of(random);
    std::map<std::uint16_t, std::int64_t> wanted;
    for (const auto& [number, states] : held) {
      for (const auto& [state, prefix] : states) {
        const bool usable = prefix.size() < prompt.size() &&
                            std::equal(prefix.begin(), prefix.end(), prompt.begin());
        if (usable) wanted[number] = std::max(wanted[number], state.tokens);
      }
    }
    const auto found = index.holders(prompt, "salt", 100, random());
    std::map<std::uint16_t, std::int64_t> answered;
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (i > 0) CHECK(found[i].tokens <= found[i - 1].tokens);
      CHECK(answered.emplace(static_cast<std::uint16_t>(found[i].node), found[i].tokens).second);
    }
    CHECK(answered == wanted);
    const auto few = index.holders(prompt, "salt", 2, 7);
    REQUIRE(few.size() == std::min<std::size_t>(2, found.size()));
    for (std::size_t i = 0; i < few.size(); ++i) CHECK(few[i].tokens == found[i].tokens);
    CHECK(index.holders(prompt, "another", 100, 0).empty());
  }
}

TEST_CASE("of equal holders each comes first for some seed") {
  FleetIndex index;
  const std::vector<Token> text(200, 1);
  const Checkpoint stored = checkpoint_at(text, 128);
  for (std::uint16_t node = 0; node < 10; ++node)
    index.store(FleetNode{node}, stored.prefix, stored.parent, stored.tokens);
  std::set<FleetNode> first;
  for (std::uint64_t seed = 0; seed < 200; ++seed)
    first.insert(index.holders(text, "salt", 1, seed).front().node);
  CHECK(first.size() == 10);
}

TEST_CASE(
    "a node has few entries behind one prefix, whatever it sends, and takes no other's place") {
  FleetIndex index;
  const std::vector<Token> text(200, 1);
  const Checkpoint stored = checkpoint_at(text, 128);
  for (std::uint64_t tail = 0; tail < 10 * FleetIndex::kMostOfAPlace; ++tail)
    index.store(FleetNode{1}, {tail, tail}, stored.prefix,
                129 + static_cast<std::int64_t>(tail % 63));
  CHECK(index.checkpoints() == FleetIndex::kMostOfAPlace);
  index.store(FleetNode{2}, stored.prefix, stored.parent, stored.tokens);
  const auto found = index.holders(text, "salt", 100, 0);
  REQUIRE(!found.empty());
  CHECK(std::ranges::any_of(found, [](const Holder& one) { return one.node == FleetNode{2}; }));
}

TEST_CASE("a prompt's beginnings are those that prompts share until they part") {
  const FleetIndex index;
  std::vector<Token> text(110000);
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<Token>(i);
  const auto whole = index.look_up(text, "salt", 1, 0).beginnings;
  CHECK(whole.size() <= 40);
  CHECK(whole.front().tokens == 512);
  CHECK(whole.back().tokens > 28000);
  CHECK(whole.back().tokens <= 32768);
  text[3000] = 0;
  const auto parted = index.look_up(text, "salt", 1, 0).beginnings;
  REQUIRE(parted.size() == whole.size());
  for (std::size_t i = 0; i < whole.size(); ++i)
    CHECK((parted[i].name == whole[i].name) == (whole[i].tokens <= 3000));
  CHECK(index.look_up(Tokens(text).first(512), "salt", 1, 0).beginnings.empty());
  CHECK(index.look_up(Tokens(text).first(513), "other", 1, 0).beginnings.front().name !=
        whole.front().name);
}
