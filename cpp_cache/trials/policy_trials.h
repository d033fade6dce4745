// Trials of policies on the traffic so far.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "core/cache_config.h"
#include "core/ids.h"
#include "trials/served.h"
#include "trials/traffic_sample.h"

namespace tasuki::cache {

// A cache without memory under one policy.
class Shadow {
 public:
  virtual ~Shadow() = default;
  // Replay the request. Returns the saved prefill; prefill of one token is 1.
  virtual double serve(const Served& served) = 0;
  virtual void flush() = 0;
};

// Recent savings of a shadow; prefill of one token is 1.
struct PolicyScore {
  PolicyKind policy;
  double saved;
};

// Owns one shadow for each candidate and replays a sample of the requests in each. Costs their ids
// and tokens, no KV. Deterministic; thread rule as PrefixCache.
class PolicyTrials {
 public:
  using Candidate = std::pair<PolicyKind, std::unique_ptr<Shadow>>;

  // Takes about one request of `one_in`. REQUIRES: one_in >= 1; kValue is among the candidates.
  PolicyTrials(std::int64_t one_in, std::vector<Candidate> candidates);

  // Return true if the request belongs to the sample; pass it to serve() at its end then.
  bool samples(std::string_view salt, Tokens prompt) { return sample_.take(salt, prompt); }
  void serve(const Served& served);
  void flush();
  // Return the policy to follow. Another one takes over once it saved 2 % more prefill over the
  // last requests, and by more than luck.
  PolicyKind best() const { return best_; }
  std::vector<PolicyScore> scores() const;

 private:
  struct Trial {
    PolicyKind policy;
    std::unique_ptr<Shadow> shadow;
    // All fade: its savings, its lead over the current policy, and the squares of the lead.
    double saved = 0;
    double lead = 0;
    double spread = 0;
    double latest = 0;
  };

  void compare();

  TrafficSample sample_;
  std::vector<Trial> trials_;
  PolicyKind best_ = PolicyKind::kValue;
  std::int64_t served_ = 0;
};

}  // namespace tasuki::cache
