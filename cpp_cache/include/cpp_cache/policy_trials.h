// Which policy would have saved most on the traffic so far: shadow trees that hold no memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cpp_cache/ids.h"
#include "cpp_cache/match.h"
#include "cpp_cache/stats.h"
#include "cpp_cache/traffic_sample.h"
#include "cpp_cache/tree_config.h"

namespace tasuki::cache {

class HybridTree;
class ReuseModel;

// A state that a request published.
struct Published {
  std::int64_t boundary;
  CheckpointKind kind;
  TurnHint hint;
};

// What a request did, told when it ends.
struct Served {
  std::string salt;
  std::vector<Token> tokens;  // prompt and answer
  std::int64_t prompt_tokens;
  std::vector<Published> published;
  std::int64_t now_ms;
};

// Owns one tree for each candidate and replays a sample of the requests in each. The trees are as
// much smaller than the real arena as the sample than the traffic, down to a least size. Costs
// their ids and tokens, no KV. Deterministic; thread rule as HybridTree.
class PolicyTrials {
 public:
  // `learnt`: of the whole traffic, which a sample alone would teach slower. REQUIRES: it outlives
  // this.
  PolicyTrials(const TreeConfig& config, const ReuseModel& learnt);
  ~PolicyTrials();

  // Whether the request belongs to the sample: if so it is to be told to serve() at its end.
  bool samples(std::string_view salt, Tokens prompt) { return sample_.take(salt, prompt); }
  void serve(const Served& served);
  void flush();
  // The policy to follow: another takes over once it saved 2 % more prefill over the last
  // requests, and by more than luck.
  PolicyKind best() const { return best_; }
  std::vector<PolicyScore> scores() const;

 private:
  struct Trial {
    PolicyKind policy;
    std::unique_ptr<HybridTree> tree;
    // All fade: what it saved, its lead over the policy followed, and the squares of that.
    double saved = 0;
    double lead = 0;
    double spread = 0;
    double latest = 0;
  };

  double serve(Trial& trial, const Served& served);
  void compare();

  double attention_cost_;
  TrafficSample sample_;
  std::vector<Trial> trials_;
  PolicyKind best_ = PolicyKind::kValue;
  std::int64_t served_ = 0;
};

}  // namespace tasuki::cache
