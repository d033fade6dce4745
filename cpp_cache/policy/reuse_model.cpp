#include "policy/reuse_model.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace tasuki::cache {

namespace {

constexpr double kWeight = 1;     // weight of the wider group, in events
constexpr double kFade = 0.9995;  // factor on all evidence at each learning

double seconds_in(std::int32_t bucket) {
  return bucket == 0 ? 1.0 : 0.5 * std::exp2(static_cast<double>(bucket));
}

// Group by hint, kind and superseded or not: these matter most, so a rare class uses this group
// first.
std::int32_t family_of(std::int32_t group) { return group / 16 % 6 * 4 + group % 4; }
constexpr std::int32_t kFamilies = 24;

}  // namespace

std::int32_t ReuseClass::index() const {
  std::int32_t depth = 0;
  for (std::int64_t edge = 2048; depth < 3 && boundary >= edge; edge *= 4) ++depth;
  std::int32_t index = static_cast<std::int32_t>(kind);
  index = index * 3 + static_cast<std::int32_t>(hint);
  index = index * 2 + (superseded ? 1 : 0);
  index = index * 4 + static_cast<std::int32_t>(std::min<std::int64_t>(turns, 3));
  return index * 4 + depth;
}

ReuseModel::ReuseModel()
    : past_(static_cast<std::size_t>(kClasses * kBuckets)),
      now_(past_.size()),
      hazard_(past_.size()),
      gittins_(past_.size()) {
  learn(0);
}

std::int32_t ReuseModel::bucket_of(std::int64_t age_ms) {
  if (age_ms < 1000) return 0;
  const auto doublings = std::bit_width(static_cast<std::uint64_t>(age_ms / 500)) - 1;
  return std::min(kBuckets - 1, static_cast<std::int32_t>(doublings));
}

void ReuseModel::enter(std::int32_t group, std::int32_t bucket, std::int64_t now_ms) {
  AtRisk& risk = now_[cell(group, bucket)];
  ++risk.count;
  risk.sum_of_entries_ms += now_ms;
}

void ReuseModel::leave(std::int32_t group, std::int32_t bucket, std::int64_t entered_ms,
                       std::int64_t now_ms) {
  AtRisk& risk = now_[cell(group, bucket)];
  --risk.count;
  risk.sum_of_entries_ms -= entered_ms;
  past_[cell(group, bucket)].seconds += static_cast<double>(now_ms - entered_ms) / 1000;
}

void ReuseModel::reuse(std::int32_t group, std::int32_t bucket) {
  past_[cell(group, bucket)].reuses += 1;
}

void ReuseModel::learn(std::int64_t now_ms) {
  std::array<Evidence, kBuckets> all{};
  std::vector<Evidence> families(static_cast<std::size_t>(kFamilies * kBuckets));
  std::vector<Evidence> classes(past_.size());
  for (std::int32_t group = 0; group < kClasses; ++group) {
    for (std::int32_t bucket = 0; bucket < kBuckets; ++bucket) {
      const AtRisk& risk = now_[cell(group, bucket)];
      Evidence& past = past_[cell(group, bucket)];
      past.reuses *= kFade;
      past.seconds *= kFade;
      Evidence seen = past;
      // Entries still in the bucket have been at risk there without a reuse so far.
      seen.seconds += static_cast<double>(risk.count * now_ms - risk.sum_of_entries_ms) / 1000;
      classes[cell(group, bucket)] = seen;
      Evidence& family = families[static_cast<std::size_t>(family_of(group) * kBuckets + bucket)];
      family.reuses += seen.reuses;
      family.seconds += seen.seconds;
      all[static_cast<std::size_t>(bucket)].reuses += seen.reuses;
      all[static_cast<std::size_t>(bucket)].seconds += seen.seconds;
    }
  }
  for (std::int32_t group = 0; group < kClasses; ++group) {
    for (std::int32_t bucket = 0; bucket < kBuckets; ++bucket) {
      const auto column = static_cast<std::size_t>(bucket);
      // Before anything is known a state is the likelier used the younger it is.
      const double age = seconds_in(bucket) + 1;
      const double wide = (all[column].reuses + 1) / (all[column].seconds + age);
      const Evidence& family =
          families[static_cast<std::size_t>(family_of(group) * kBuckets + bucket)];
      const double near = (family.reuses + kWeight) / (family.seconds + kWeight / wide);
      const Evidence& own = classes[cell(group, bucket)];
      hazard_[cell(group, bucket)] = (own.reuses + kWeight) / (own.seconds + kWeight / near);
    }
    fill_gittins(group);
  }
}

void ReuseModel::fill_gittins(std::int32_t group) {
  std::array<double, kBuckets> hazards{};
  std::copy_n(hazard_.begin() + group * kBuckets, kBuckets, hazards.begin());
  const auto indices = gittins_indices(hazards);
  std::ranges::copy(indices, gittins_.begin() + group * kBuckets);
}

std::array<double, ReuseModel::kBuckets> gittins_indices(
    const std::array<double, ReuseModel::kBuckets>& hazards) {
  constexpr auto kCount = static_cast<std::size_t>(ReuseModel::kBuckets);
  std::array<double, kCount> used{};  // chance of use within the bucket, once it is reached
  std::array<double, kCount> held{};  // expected time held within it
  for (std::size_t bucket = 0; bucket < kCount; ++bucket) {
    const double width = seconds_in(static_cast<std::int32_t>(bucket));
    used[bucket] = -std::expm1(-hazards[bucket] * width);
    held[bucket] = used[bucket] / hazards[bucket];
  }
  std::array<double, kCount> indices{};
  for (std::size_t from = 0; from < kCount; ++from) {
    double reached = 1;
    double chance = 0;
    double time = 0;
    for (std::size_t until = from; until < kCount; ++until) {
      chance += reached * used[until];
      time += reached * held[until];
      indices[from] = std::max(indices[from], chance / time);
      reached *= 1 - used[until];
    }
  }
  return indices;
}

}  // namespace tasuki::cache
