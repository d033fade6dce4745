#include "fleet/fleet_index.h"

#include <algorithm>
#include <unordered_set>

namespace tasuki::cache {

namespace {

constexpr std::uint32_t kCheckBits = 0xffffff;

// SplitMix64's finalizer.
std::uint64_t mixed(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

// In pages.
constexpr std::size_t kStep = 8;
constexpr std::size_t kFine = 128;
constexpr std::size_t kDeepest = 512;

std::vector<Beginning> beginnings_of(const std::vector<PrefixHash>& pages) {
  std::vector<Beginning> found;
  for (std::size_t end = kStep; end <= kDeepest && end < pages.size();
       end += end < kFine ? kStep : end / 8)
    found.push_back({static_cast<std::int64_t>(end) * kPageTokens, pages[end].low});
  return found;
}

std::int64_t inside_a_page(std::int64_t tokens) { return tokens % kPageTokens; }

}  // namespace

std::uint64_t FleetIndex::place(const PrefixHash& prefix, const PrefixHash& parent,
                                std::int64_t tokens) {
  return inside_a_page(tokens) ? parent.low : prefix.low;
}

FleetIndex::Entry FleetIndex::entry(FleetNode node, const PrefixHash& prefix, std::int64_t tokens) {
  const auto inside = static_cast<std::uint8_t>(inside_a_page(tokens));
  return {node, inside, inside ? static_cast<std::uint32_t>(prefix.low) & kCheckBits : 0};
}

void FleetIndex::store(FleetNode node, const PrefixHash& prefix, const PrefixHash& parent,
                       std::int64_t tokens) {
  Entries& entries = by_pages_[place(prefix, parent, tokens)];
  const Entry stored = entry(node, prefix, tokens);
  std::size_t of_node = 0;
  for (const Entry& listed : entries) {
    if (listed == stored) return;
    if (listed.node == node) ++of_node;
  }
  if (of_node >= kMostOfAPlace) return;
  entries.push_back(stored);
  ++checkpoints_;
}

void FleetIndex::remove(FleetNode node, const PrefixHash& prefix, const PrefixHash& parent,
                        std::int64_t tokens) {
  const auto found = by_pages_.find(place(prefix, parent, tokens));
  if (found == by_pages_.end()) return;
  Entries& entries = found->second;
  const auto* const removed = std::ranges::find(entries, entry(node, prefix, tokens));
  if (removed == entries.end()) return;
  entries.erase(removed);
  --checkpoints_;
  if (entries.empty()) by_pages_.erase(found);
}

void FleetIndex::forget(FleetNode node) {
  for (auto at = by_pages_.begin(); at != by_pages_.end();) {
    Entries& entries = at->second;
    for (const Entry* entry = entries.begin(); entry != entries.end();) {
      if (entry->node != node) {
        ++entry;
        continue;
      }
      const auto offset = entry - entries.begin();
      entries.erase(entry);
      --checkpoints_;
      entry = entries.begin() + offset;
    }
    at = entries.empty() ? by_pages_.erase(at) : std::next(at);
  }
}

struct FleetIndex::Named {
  PrefixHasher hasher;
  Tokens usable;                  // all but the last token, always computed
  std::vector<PrefixHash> pages;  // names by number of whole pages, from 0 on

  Named(Tokens prompt, std::string_view salt)
      : hasher(salt), usable(prompt.first(prompt.size() - 1)), pages{hasher.root()} {
    pages.reserve(1 + usable.size() / kPageTokens);
    hasher.over(pages.front(), usable.first(usable.size() / kPageTokens * kPageTokens),
                [&](const PrefixHash&, const PrefixHash& prefix) { pages.push_back(prefix); });
  }
};

LookUp FleetIndex::look_up(Tokens prompt, std::string_view salt, std::size_t enough,
                           std::uint64_t seed) const {
  if (prompt.empty()) return {};
  const Named named(prompt, salt);
  return {holders_of(named, enough, seed), beginnings_of(named.pages)};
}

std::vector<Holder> FleetIndex::holders_of(const Named& prompt, std::size_t enough,
                                           std::uint64_t seed) const {
  std::vector<Holder> found;
  if (by_pages_.empty()) return found;
  const auto& [hasher, usable, pages] = prompt;
  std::unordered_set<std::uint16_t> seen;
  std::vector<Entry> here;
  const auto drawn = [seed](const Entry& entry) {
    return mixed(seed + static_cast<std::uint64_t>(entry.node));
  };
  for (std::size_t page = pages.size(); page-- > 0 && found.size() < enough;) {
    const auto listed = by_pages_.find(pages[page].low);
    if (listed == by_pages_.end()) continue;
    here.assign(listed->second.begin(), listed->second.end());
    std::ranges::sort(here, [&](const Entry& a, const Entry& b) {
      return a.inside != b.inside ? a.inside > b.inside : drawn(a) < drawn(b);
    });
    const Tokens behind = usable.subspan(page * kPageTokens);
    std::uint8_t hashed = 0;
    std::uint32_t check = 0;
    for (const Entry& entry : here) {
      if (entry.inside > behind.size()) continue;
      if (entry.inside != hashed && entry.inside != 0) {
        hashed = entry.inside;
        check = static_cast<std::uint32_t>(hasher.next(pages[page], behind.first(hashed)).low) &
                kCheckBits;
      }
      if (entry.inside != 0 && entry.check != check) continue;
      if (found.size() == enough) break;
      if (!seen.insert(static_cast<std::uint16_t>(entry.node)).second) continue;
      found.push_back({entry.node, static_cast<std::int64_t>(page) * kPageTokens + entry.inside});
    }
  }
  return found;
}

}  // namespace tasuki::cache
