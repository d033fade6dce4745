#include "nodes/ghost_list.h"

namespace tasuki::cache {

void GhostList::add(const Ghost& ghost, std::int64_t tokens) {
  ghosts_.insert(ghosts_.end(), ghost);  // nearly always the youngest
  tokens_ += tokens;
}

void GhostList::remove(const Ghost& ghost, std::int64_t tokens) {
  // The ghost is nearly always the oldest, so no search is needed.
  const auto at =
      !ghosts_.empty() && *ghosts_.begin() == ghost ? ghosts_.begin() : ghosts_.find(ghost);
  if (at == ghosts_.end()) return;
  ghosts_.erase(at);
  tokens_ -= tokens;
}

std::optional<Ghost> GhostList::excess() const {
  if (size() <= limit_ && tokens_ <= limit_ * kTokensPerGhost) return std::nullopt;
  return oldest();
}

std::optional<Ghost> GhostList::oldest() const {
  if (ghosts_.empty()) return std::nullopt;
  return *ghosts_.begin();
}

}  // namespace tasuki::cache
