#include "nodes/tail_list.h"

#include <algorithm>

namespace tasuki::cache {

const Tail* TailList::find(TailId id) const {
  if (!body_) return nullptr;
  const auto found = body_->tails.find(id);
  return found == body_->tails.end() ? nullptr : &found->second;
}

const Tail* TailList::find(PageId page) const {
  if (!body_) return nullptr;
  const auto found = body_->pages.find(page);
  return found == body_->pages.end() ? nullptr : find(found->second);
}

const Tail* TailList::exact(const Trie& trie, Tokens tokens) {
  const auto nearest = trie.nearest(tokens);
  return nearest && std::ranges::equal((*nearest)->tokens, tokens) ? *nearest : nullptr;
}

const Tail* TailList::find(Tokens tokens) const {
  if (!body_) return nullptr;
  const Tail* const standing = exact(body_->standing, tokens);
  return standing != nullptr ? standing : exact(body_->gone, tokens);
}

std::int64_t TailList::common_with(Tokens run) const {
  if (!body_) return 0;
  const auto nearest = body_->standing.nearest(run);
  return nearest ? common_tokens((*nearest)->tokens, run) : 0;
}

void TailList::add(Tail tail) {
  if (!body_) body_ = std::make_unique<Body>();
  const TailId id = tail.id;
  const Tail& added = body_->tails.emplace_hint(body_->tails.end(), id, std::move(tail))->second;
  body_->standing.insert(added.tokens, &added, tokens_of);
  body_->pages.emplace(*added.page, id);
  ++body_->resident;
}

void TailList::add_gone(Tail tail) {
  if (!body_) body_ = std::make_unique<Body>();
  const TailId id = tail.id;
  const Tail& added = body_->tails.emplace_hint(body_->tails.end(), id, std::move(tail))->second;
  body_->gone.insert(added.tokens, &added, tokens_of);
}

void TailList::move_page(PageId from, PageId to) {
  const TailId id = body_->pages.at(from);
  body_->pages.erase(from);
  body_->pages.emplace(to, id);
  body_->tails.at(id).page = to;
}

std::pair<PageId, SlotId> TailList::evict(TailId id, Tick now) {
  Tail& tail = body_->tails.at(id);
  const std::pair held{*tail.page, tail.state->slot};
  body_->standing.erase(tail.tokens);
  body_->gone.insert(tail.tokens, &tail, tokens_of);
  body_->pages.erase(*tail.page);
  --body_->resident;
  tail.page.reset();
  tail.state.reset();
  tail.ghost_since = now;
  return held;
}

void TailList::revive(TailId id, PageId page, const Checkpoint& state) {
  Tail& tail = body_->tails.at(id);
  body_->gone.erase(tail.tokens);
  body_->standing.insert(tail.tokens, &tail, tokens_of);
  body_->pages.emplace(page, id);
  ++body_->resident;
  tail.page = page;
  tail.state = state;
}

void TailList::forget(TailId id) {
  const auto gone = body_->tails.find(id);
  body_->gone.erase(gone->second.tokens);
  body_->tails.erase(gone);
  if (body_->tails.empty()) body_.reset();
}

}  // namespace tasuki::cache
