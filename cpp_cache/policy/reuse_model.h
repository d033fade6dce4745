// How soon a state of some kind, unused for some time, is used again: learnt, never assumed.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "policy/eviction_policy.h"

namespace tasuki::cache {

// Features of a state's class.
struct ReuseClass {
  CheckpointKind kind;
  TurnHint hint;
  bool superseded;
  std::int64_t turns;     // 3 means 3 or more
  std::int64_t boundary;  // in tokens

  std::int32_t index() const;
};

// Counts reuses and time at risk by class and age, and turns them into two indices of eviction. The
// hazard is the chance of use in the next moment. The Gittins index (Gittins 1979) compares all
// times to give up. It is the best ratio of the chance of use by then to the time held until then.
// A rare class uses the evidence of its wider groups. All time is injected.
class ReuseModel {
 public:
  static constexpr std::int32_t kClasses = 6 * 3 * 2 * 4 * 4;
  static constexpr std::int32_t kBuckets = 24;  // buckets of age: up to 1 s, then doubling

  ReuseModel();

  static std::int32_t bucket_of(std::int64_t age_ms);
  // Return the age at which a state leaves the bucket; no state leaves the last one.
  static std::int64_t end_of(std::int32_t bucket) { return std::int64_t{1000} << bucket; }

  // A state is at risk in (group, bucket) from enter to leave.
  void enter(std::int32_t group, std::int32_t bucket, std::int64_t now_ms);
  void leave(std::int32_t group, std::int32_t bucket, std::int64_t entered_ms, std::int64_t now_ms);
  void reuse(std::int32_t group, std::int32_t bucket);

  // Recomputes both indices. O(kClasses * kBuckets^2).
  void learn(std::int64_t now_ms);
  double hazard(std::int32_t group, std::int32_t bucket) const {
    return hazard_[cell(group, bucket)];
  }
  double gittins(std::int32_t group, std::int32_t bucket) const {
    return gittins_[cell(group, bucket)];
  }

 private:
  struct AtRisk {
    std::int64_t count = 0;
    std::int64_t sum_of_entries_ms = 0;
  };
  struct Evidence {
    double reuses = 0;
    double seconds = 0;
  };

  static std::size_t cell(std::int32_t group, std::int32_t bucket) {
    return static_cast<std::size_t>(group * kBuckets + bucket);
  }
  void fill_gittins(std::int32_t group);

  std::vector<Evidence> past_;
  std::vector<AtRisk> now_;
  std::vector<double> hazard_;
  std::vector<double> gittins_;
};

// Best P(used by a stopping age) / E(time held until then), for each bucket to start from.
std::array<double, ReuseModel::kBuckets> gittins_indices(
    const std::array<double, ReuseModel::kBuckets>& hazards);

}  // namespace tasuki::cache
