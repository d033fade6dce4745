// Tests of the listed states and their worth, against a policy that only records.
#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "tests/cache_life.h"
#include "tree/radix_tree.h"
#include "tree/state_worth.h"
#include "tree/tree_check.h"

namespace tasuki::cache {
namespace {

// Victims by age alone; counts how often a state is listed.
class Remembering final : public EvictionPolicy {
 public:
  void add(const EvictionItem& item, const Worth& worth) override {
    REQUIRE(items.emplace(item, worth).second);
    if (item.kind != EvictionKind::kLeafPages) ++listings;
  }
  void remove(const EvictionItem& item) override { REQUIRE(items.erase(item) == 1); }
  bool contains(const EvictionItem& item) const override { return items.contains(item); }
  std::optional<EvictionItem> victim() const override {
    if (items.empty()) return std::nullopt;
    return items.begin()->first;
  }
  std::int64_t size() const override { return static_cast<std::int64_t>(items.size()); }
  bool learns() const override { return true; }
  void inherited(const StateKey& dropped, const StateKey& heir) override {
    heirs.emplace_back(dropped, heir);
  }
  void forgotten(const StateKey& key) override { lost.push_back(key); }

  std::map<EvictionItem, Worth> items;
  std::int64_t listings = 0;
  std::vector<std::pair<StateKey, StateKey>> heirs;
  std::vector<StateKey> lost;
};

// A tree with pages and slots with numbers never reused.
class Grove {
 public:
  explicit Grove(std::int64_t slabs, std::int64_t ghosts = 64) {
    const CacheConfig shape{slabs, 4, 3, ghosts, PolicyKind::kValue, 1e-3};
    auto remembering = std::make_unique<Remembering>();
    policy = remembering.get();
    tree = std::make_unique<RadixTree>(std::move(remembering), shape);
    worth = std::make_unique<StateWorth>(tree->nodes(), shape);
    root = tree->open_root("");
  }

  std::vector<PageId> pages(std::size_t count) {
    std::vector<PageId> taken;
    while (taken.size() < count) taken.push_back(page());
    return taken;
  }
  PageId page() {
    const auto next = static_cast<PageId>(next_page_ / 3 * 4 + next_page_ % 3);
    ++next_page_;
    return next;
  }
  SlotId slot() { return static_cast<SlotId>(next_slot_++); }

  // Check the listed weights of a node's tails after a change of the node.
  void check_tails(NodeId id) const {
    const Node& node = tree->node(id);
    for (const auto& [tail_id, tail] : node.tails) {
      if (!tail.resident() || tail.state->pins > 0) continue;
      const EvictionItem item{EvictionKind::kTail, tail.state->last_use, id, tail_id,
                              tail.state->probationary};
      REQUIRE(policy->items.contains(item));
      const Worth fresh = worth->of_tail(worth->weighing(node), tail);
      CHECK(policy->items.at(item).gain == fresh.gain);
      CHECK(policy->items.at(item).pages == fresh.pages);
    }
  }

  Remembering* policy;
  std::unique_ptr<RadixTree> tree;
  std::unique_ptr<StateWorth> worth;
  NodeId root;
  Tick now = 1;

 private:
  std::int64_t next_page_ = 0;
  std::int32_t next_slot_ = 0;
};

TEST_CASE("a node's tails are listed at what they are worth, whatever happened around them") {
  std::mt19937 random(11);
  for (int life = 0; life < 20; ++life) {
    Grove grove(4'000);
    RadixTree& tree = *grove.tree;
    std::vector<NodeId> nodes{grove.root};
    std::vector<std::pair<NodeId, AllocationId>> pinned;
    std::vector<StateKey> held;
    for (int step = 0; step < 400; ++step) {
      ++grove.now;
      const auto alive = [&](NodeId id) {
        const Node& node = tree.node(id);
        return node.serial != 0 && node.resident;
      };
      std::erase_if(nodes, [&](NodeId id) { return !alive(id); });
      if (nodes.empty()) nodes.push_back(tree.open_root(""));
      const NodeId id = nodes[random() % nodes.size()];
      const Node& node = tree.node(id);
      const auto token = static_cast<Token>(random() % 3);
      switch (random() % 8) {
        case 0: {
          const std::vector<Token> run(static_cast<std::size_t>(kPageTokens), token);
          if (node.depth < 6 * kPageTokens && !tree.find_child(node, PageKey(run))) {
            nodes.push_back(tree.add_child(id, run, grove.pages(1), grove.now));
          }
          break;
        }
        case 1:
          if (!node.is_root() && !node.checkpoint) {
            tree.attach_checkpoint(id, grove.slot(), {.boundary = node.depth}, grove.now);
          }
          break;
        case 2:
        case 3: {
          const std::vector<Token> run(1 + random() % 4, token);
          const Tail* const same = node.tails.find(Tokens(run));
          if (same == nullptr || !same->resident()) {
            tree.attach_tail(id, run, grove.page(), grove.slot(), {}, grove.now);
          }
          break;
        }
        case 4: {
          const auto allocation = static_cast<AllocationId>(step + 1);
          tree.pins().pin(id, allocation, grove.now);
          pinned.emplace_back(id, allocation);
          break;
        }
        case 5:
          if (!pinned.empty()) {
            tree.pins().unpin(pinned.back().first, pinned.back().second);
            pinned.pop_back();
          }
          break;
        case 6:
          for (const auto& [tail_id, tail] : node.tails) {
            if (!tail.resident() || random() % 2 == 0) continue;
            const StateKey key{id, tail_id};
            tree.touch(key, grove.now);
            if (!node.is_protected()) break;
            tree.pins().pin_state(key);
            held.push_back(key);
            break;
          }
          break;
        default:
          if (!held.empty() && random() % 2 == 0) {
            tree.pins().unpin_state(held.back());
            held.pop_back();
          } else if (const auto victim = tree.victim(); victim && random() % 2 == 0) {
            tree.evict(*victim, grove.now);
          }
      }
      if (alive(id)) grove.check_tails(id);
    }
    while (!held.empty()) {
      tree.pins().unpin_state(held.back());
      held.pop_back();
    }
    for (const auto& [id, allocation] : pinned) tree.pins().unpin(id, allocation);
    check_tree(tree, grove.now);
  }
}

TEST_CASE("a request lists its own states, however many tails are its neighbours") {
  Grove grove(4'000);
  RadixTree& tree = *grove.tree;
  const std::vector<Token> run(static_cast<std::size_t>(kPageTokens), 1);
  const NodeId node = tree.add_child(grove.root, run, grove.pages(1), 1);
  tree.attach_checkpoint(node, grove.slot(), {.boundary = kPageTokens}, 1);
  const auto request = [&](Token question) {
    const std::int64_t before = grove.policy->listings;
    const auto allocation = static_cast<AllocationId>(question + 1);
    ++grove.now;
    tree.pins().pin(node, allocation, grove.now);
    tree.pins().pin_state({node, std::nullopt});
    tree.touch({node, std::nullopt}, grove.now);
    const std::vector<Token> asked{7, question};
    const TailId tail = tree.attach_tail(node, asked, grove.page(), grove.slot(), {}, grove.now);
    tree.pins().pin_state({node, tail});
    tree.pins().unpin_state({node, std::nullopt});
    tree.pins().unpin_state({node, tail});
    tree.pins().unpin(node, allocation);
    return grove.policy->listings - before;
  };
  request(0);  // weighs the first tail
  const std::int64_t second = request(1);
  for (Token question = 2; question < 1'000; ++question) request(question);
  CHECK(request(1'000) == second);
  grove.check_tails(node);
}

TEST_CASE("a state that is let go is listed once, though its worth changed meanwhile") {
  // More subtrees than the limit of subtrees weighed again after a change above them.
  Grove grove(4'000);
  RadixTree& tree = *grove.tree;
  const std::vector<Token> run(static_cast<std::size_t>(kPageTokens), 1);
  const NodeId top = tree.add_child(grove.root, run, grove.pages(1), 1);
  std::vector<NodeId> leaves;
  for (Token leaf = 0; leaf < 200; ++leaf) {
    const std::vector<Token> page(static_cast<std::size_t>(kPageTokens), leaf);
    leaves.push_back(tree.add_child(top, page, grove.pages(1), 2));
    tree.attach_checkpoint(leaves.back(), grove.slot(), {.boundary = 2 * kPageTokens}, 2);
    tree.pins().pin(leaves.back(), static_cast<AllocationId>(leaf + 1), 3);
  }
  tree.attach_checkpoint(top, grove.slot(), {.boundary = kPageTokens}, 4);
  for (std::size_t leaf = 0; leaf < leaves.size(); ++leaf) {
    tree.pins().unpin(leaves[leaf], static_cast<AllocationId>(leaf + 1));
  }
  check_tree(tree, 5);
  for (std::size_t count = 0; count < 201; ++count) tree.evict(tree.victim().value(), 6);
}

TEST_CASE("a state that goes leaves its place to the one above, and what stands is not forgotten") {
  Grove grove(100);
  RadixTree& tree = *grove.tree;
  const std::vector<Token> run(static_cast<std::size_t>(kPageTokens), 1);
  const NodeId upper = tree.add_child(grove.root, run, grove.pages(1), 1);
  const NodeId lower = tree.add_child(upper, run, grove.pages(1), 1);
  for (const NodeId node : {upper, lower}) {
    tree.attach_checkpoint(node, grove.slot(), {.boundary = tree.node(node).depth}, 1);
  }
  const StateKey heir{upper, std::nullopt};
  const StateKey dropped{lower, std::nullopt};
  tree.forget_ghosts();
  CHECK(grove.policy->lost.empty());
  tree.evict({EvictionKind::kCheckpoint, 1, lower, std::nullopt}, 2);
  CHECK(grove.policy->heirs == std::vector{std::pair{dropped, heir}});
  tree.forget_ghosts();
  CHECK(grove.policy->lost == std::vector{dropped});
}

TEST_CASE("a state is weighed anew where a fork above it comes back") {
  Grove grove(100);
  RadixTree& tree = *grove.tree;
  const auto child = [&](NodeId parent, Token token) {
    const std::vector<Token> run(static_cast<std::size_t>(kPageTokens), token);
    return tree.add_child(parent, run, grove.pages(1), 1);
  };
  const NodeId top = child(grove.root, 1);
  const NodeId leaf = child(top, 2);
  tree.attach_checkpoint(leaf, grove.slot(), {.boundary = 2 * kPageTokens}, 1);
  const EvictionItem item{EvictionKind::kCheckpoint, 1, leaf, std::nullopt};
  const auto pages = [&] { return grove.policy->items.at(item).pages; };
  const std::int64_t alone = pages();
  const NodeId other = child(top, 3);
  CHECK(pages() == alone - 1);
  tree.evict({EvictionKind::kLeafPages, 1, other, std::nullopt}, 2);
  CHECK(pages() == alone);
  tree.revive(other, grove.pages(1), 3);
  CHECK(pages() == alone - 1);
}

}  // namespace
}  // namespace tasuki::cache
