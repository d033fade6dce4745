#include "events/event_journal.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/errors.h"

namespace tasuki::cache {

namespace {

constexpr EventStream kStreams[] = {EventStream::kAll, EventStream::kUsable, EventStream::kSpelled};

// Return the tokens added by the event of a stored page.
Tokens page_of(const Node& node, const CacheEvent& event) {
  const auto from = static_cast<std::size_t>(event.tokens - kPageTokens - node.start());
  return Tokens(node.tokens).subspan(from, static_cast<std::size_t>(kPageTokens));
}

bool carries(EventStream stream, EventKind kind) {
  if (kind == EventKind::kCheckpointMoved) return stream == EventStream::kUsable;
  return stream != EventStream::kUsable ||
         (kind != EventKind::kPageStored && kind != EventKind::kPageRemoved);
}

}  // namespace

WatchId EventJournal::open(EventStream stream, std::int64_t capacity) {
  if (capacity < 1) {
    throw InvalidArgument("capacity must be at least 1 event, not " + std::to_string(capacity));
  }
  if (watches_.empty()) hash_all();
  const auto id = static_cast<WatchId>(next_watch_++);
  watches_.emplace(id, Watch{stream, static_cast<std::size_t>(capacity)});
  return id;
}

EventJournal::Watch& EventJournal::watch_of(WatchId id) {
  const auto found = watches_.find(id);
  if (found == watches_.end()) {
    throw InvalidArgument("watch " + std::to_string(raw(id)) + " is not open");
  }
  return found->second;
}

void EventJournal::close(WatchId id) {
  watch_of(id);
  watches_.erase(id);
  if (watches_.empty()) known_ = {};
}

EventBatch EventJournal::drain(WatchId id) {
  Watch& watch = watch_of(id);
  EventBatch batch{.sequence = sequence_of(watch.stream)};
  if (watch.needs_snapshot) {
    batch.is_snapshot = true;
    if (watch.first_lost) batch.gap = EventGap{*watch.first_lost, batch.sequence};
    batch.events = snapshot(watch.stream);
    watch.needs_snapshot = false;
    watch.first_lost.reset();
  } else {
    batch.events.assign(watch.waiting.begin(), watch.waiting.end());
  }
  watch.waiting.clear();
  return batch;
}

void EventJournal::end_clearing() {
  clearing_ = false;
  if (!watches_.empty()) report({.sequence = 0, .kind = EventKind::kCleared});
}

EventJournal::Known EventJournal::at(const Node& node) const {
  if (!node.is_root()) return known_[static_cast<std::size_t>(raw(node.id))];
  const PrefixHasher hasher(*node.salt);
  return {hasher, {}, hasher.root()};
}

void EventJournal::remember(const Node& node, const Known& known) {
  if (known_.size() < tree_.nodes().size()) known_.resize(tree_.nodes().size());
  known_[static_cast<std::size_t>(raw(node.id))] = known;
}

template <typename Each>
EventJournal::Known EventJournal::walk(const Node& node, std::int64_t start, Each each) const {
  // Tokens before `start` were hashed when they came.
  Known known = start == node.start() ? before(node) : at(node);
  const auto from = static_cast<std::size_t>(start - node.start());
  std::int64_t tokens = start;
  const PrefixHash root = known.hasher.root();
  known.end = known.hasher.over(known.end, Tokens(node.tokens).subspan(from),
                                [&](const PrefixHash& parent, const PrefixHash& prefix) {
                                  known.before_end = parent;
                                  tokens += kPageTokens;
                                  each(CacheEvent{.sequence = 0,
                                                  .kind = EventKind::kPageStored,
                                                  .tokens = tokens,
                                                  .prefix = prefix,
                                                  .parent = parent,
                                                  .root = root});
                                });
  return known;
}

void EventJournal::hash(const Node& node) {
  remember(node, walk(node, node.start(), [](const CacheEvent&) {}));
}

void EventJournal::hash_all() {
  std::vector<NodeId> order;
  for (const auto& [salt, root] : tree_.roots()) order.push_back(root);
  for (std::size_t next = 0; next < order.size(); ++next) {
    const Node& node = tree_.node(order[next]);
    if (!node.is_root()) hash(node);
    for (const ChildEntry child : node.children) order.push_back(child.node);
    for (const ChildEntry child : node.ghost_children) order.push_back(child.node);
  }
}

void EventJournal::report_stored(NodeId id, std::int64_t start) {
  const Node& node = tree_.node(id);
  const bool spelled = std::ranges::any_of(
      watches_, [](const auto& watch) { return watch.second.stream == EventStream::kSpelled; });
  remember(node, walk(node, start, [&](const CacheEvent& page) {
             report(page, spelled ? page_of(node, page) : Tokens());
           }));
}

CacheEvent EventJournal::event_of(EventKind kind, const StateKey& ref) const {
  const Node& node = tree_.node(ref.node);
  CacheEvent event{.sequence = 0, .kind = kind, .tokens = node.depth};
  if (ref.tail)
    event.tokens += static_cast<std::int64_t>(node.tails.find(*ref.tail)->tokens.size());
  if (kind == EventKind::kCheckpointStored) {
    const bool is_resident = tree_.is_resident(ref);
    const StateBelow below = tree_.state_below(ref);
    event.checkpoint = is_resident ? tree_.state(ref).kind : below.checkpoint_kind();
    event.place = is_resident ? 0 : place_of(nearest_of(below.tiers));
  }
  const Known host = at(node);
  event.root = host.hasher.root();
  if (ref.tail) {
    event.parent = host.end;
    event.prefix = host.hasher.next(host.end, node.tails.find(*ref.tail)->tokens);
    return event;
  }
  event.parent = host.before_end;
  event.prefix = host.end;
  return event;
}

void EventJournal::report_state(EventKind kind, const StateKey& ref) {
  report(event_of(kind, ref));
}

void EventJournal::report_moved(const StateKey& ref, std::uint8_t place) {
  CacheEvent event = event_of(EventKind::kCheckpointMoved, ref);
  event.place = place;
  report(std::move(event));
}

void EventJournal::report_evicted(const EvictionItem& item) {
  if (item.kind != EvictionKind::kLeafPages) {
    report_state(EventKind::kCheckpointRemoved, {item.node, item.tail});
    return;
  }
  const Node& node = tree_.node(item.node);
  std::vector<CacheEvent> gone;
  walk(node, node.start(), [&gone](const CacheEvent& page) { gone.push_back(page); });
  std::for_each(gone.rbegin(), gone.rend(), [this](CacheEvent page) {
    page.kind = EventKind::kPageRemoved;
    report(page);
  });
}

void EventJournal::report(CacheEvent event, Tokens page) {
  for (const EventStream stream : kStreams) {
    if (!carries(stream, event.kind)) continue;
    if (stream == EventStream::kSpelled) event.page.assign(page.begin(), page.end());
    report_on(stream, event);
  }
}

void EventJournal::report_on(EventStream stream, CacheEvent event) {
  event.sequence = ++sequence_of(stream);
  for (auto& [id, watch] : watches_) {
    if (watch.stream != stream || watch.needs_snapshot) continue;
    if (watch.waiting.size() < watch.capacity) {
      watch.waiting.push_back(event);
      continue;
    }
    // Waiting events are older than the gap: a snapshot has them too.
    watch.first_lost = watch.waiting.front().sequence;
    watch.waiting = {};
    watch.needs_snapshot = true;
  }
}

std::vector<CacheEvent> EventJournal::snapshot(EventStream stream) {
  std::vector<CacheEvent> events;
  const std::uint64_t sequence = sequence_of(stream);
  const auto add = [&](CacheEvent event) {
    event.sequence = sequence;
    if (carries(stream, event.kind)) events.push_back(std::move(event));
  };
  const auto add_state = [&](const StateKey& ref) {
    add(event_of(EventKind::kCheckpointStored, ref));
  };
  std::vector<NodeId> order;
  for (const auto& [salt, root] : tree_.roots()) order.push_back(root);
  for (std::size_t next = 0; next < order.size(); ++next) {
    const Node& node = tree_.node(order[next]);
    if (stream != EventStream::kUsable && !node.is_root()) {
      walk(node, node.start(), [&](CacheEvent page) {
        if (stream == EventStream::kSpelled) {
          const Tokens tokens = page_of(node, page);
          page.page.assign(tokens.begin(), tokens.end());
        }
        add(std::move(page));
      });
    }
    if (node.checkpoint || node.checkpoint_below.tiers != 0) add_state({node.id, std::nullopt});
    for (const auto& [id, tail] : node.tails) {
      if (!tail.is_ghost()) add_state({node.id, id});
    }
    // Below a ghost are only ghosts.
    for (const ChildEntry child : node.children) order.push_back(child.node);
    for (const ChildEntry child : node.ghost_children) {
      if (!tree_.node(child.node).is_ghost()) order.push_back(child.node);
    }
  }
  return events;
}

}  // namespace tasuki::cache
