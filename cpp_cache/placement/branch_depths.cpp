#include "placement/branch_depths.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/ids.h"

namespace tasuki::cache {

namespace {

constexpr std::int64_t kPromptsToHalve = 1024;
constexpr double kWeight = 1;  // weight of prompts of all lengths, in prompts of one length

// A possible place of a state.
struct Candidate {
  std::int64_t boundary;
  double chance;  // chance of a request leaving the prompt at or behind it
  double gain;    // prefill saved by then
};

// The best set of places ending with one candidate.
struct Chain {
  double worth = 0;
  std::vector<std::int64_t> boundaries{};
};

}  // namespace

std::size_t BranchDepths::row_of(std::int64_t prompt_tokens) {
  const auto octave = std::bit_width(static_cast<std::uint64_t>(prompt_tokens / kPageTokens));
  return std::min<std::size_t>(kRows - 1, static_cast<std::size_t>(octave));
}

std::size_t BranchDepths::column_of(std::int64_t distance) {
  std::size_t column = 0;
  while (column + 1 < kColumns && farthest_in(column) < distance) ++column;
  return column;
}

std::int64_t BranchDepths::farthest_in(std::size_t column) {
  const double pages = std::exp2(static_cast<double>(column) / 2);
  return static_cast<std::int64_t>(std::ceil(pages)) * kPageTokens;
}

double BranchDepths::prefill(std::int64_t tokens) const {
  const auto count = static_cast<double>(tokens);
  return count * (1 + attention_cost_ * count / 2);
}

void BranchDepths::fade() {
  for (Row& row : rows_) {
    row.prompts /= 2;
    for (double& count : row.left) count /= 2;
  }
  all_.prompts /= 2;
  for (double& count : all_.left) count /= 2;
}

void BranchDepths::brought(std::int64_t prompt_tokens) {
  if (++since_fade_ % kPromptsToHalve == 0) fade();
  rows_[row_of(prompt_tokens)].prompts += 1;
  all_.prompts += 1;
}

void BranchDepths::left(std::int64_t prompt_tokens, std::int64_t depth) {
  const std::size_t column = column_of(prompt_tokens - depth);
  rows_[row_of(prompt_tokens)].left[column] += 1;
  all_.left[column] += 1;
}

std::vector<std::int64_t> BranchDepths::points(const LongPrompt& prompt, double price) const {
  if (!is_long(prompt.fresh) || all_.prompts == 0) return {};
  const Row& row = rows_[row_of(prompt.tokens)];
  const double saved = prefill(prompt.usable);
  std::vector<Candidate> candidates;
  double chance = 0;
  for (std::size_t column = 0; column < kColumns; ++column) {
    const std::int64_t boundary = (prompt.tokens - farthest_in(column)) / kPageTokens * kPageTokens;
    if (boundary <= prompt.tokens - prompt.fresh) break;
    if (all_.left[column] == 0) continue;
    chance +=
        (row.left[column] + kWeight * all_.left[column] / all_.prompts) / (row.prompts + kWeight);
    candidates.push_back({boundary, chance, prefill(boundary) - saved});
  }
  // Shallowest first. A state behind a set adds its saving over the set's deepest state, for the
  // requests leaving behind it.
  std::ranges::reverse(candidates);
  Chain best;
  std::vector<Chain> chains(candidates.size());
  for (std::size_t count = 0; count < kMostPoints; ++count) {
    std::vector<Chain> longer(candidates.size());
    for (std::size_t last = count; last < candidates.size(); ++last) {
      const Candidate& added = candidates[last];
      Chain& chain = longer[last];
      chain.worth = count == 0 ? added.chance * added.gain - price : 0;
      const Chain* before = nullptr;
      for (std::size_t prior = 0; count > 0 && prior < last; ++prior) {
        if (chains[prior].boundaries.empty()) continue;
        const double worth =
            chains[prior].worth + added.chance * (added.gain - candidates[prior].gain) - price;
        if (before != nullptr && worth <= chain.worth) continue;
        chain.worth = worth;
        before = &chains[prior];
      }
      if (count > 0 && before == nullptr) continue;
      if (before != nullptr) chain.boundaries = before->boundaries;
      chain.boundaries.push_back(added.boundary);
      if (chain.worth > best.worth) best = chain;
    }
    chains = std::move(longer);
  }
  return best.boundaries;
}

}  // namespace tasuki::cache
