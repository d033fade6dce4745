// Learnt depths at which requests leave long prompts seen once before.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace tasuki::cache {

// A prompt before its computation.
struct LongPrompt {
  std::int64_t tokens;
  std::int64_t fresh;   // unseen tokens at the end
  std::int64_t usable;  // tokens served by an existing state
};

// Counts long first-seen prompts by length. For each it counts the distance from its end to the
// point left by the next request, in half octaves. The counts give the most useful places for
// states inside such a prompt. All counts fade. Does not know tokens, nodes or policies.
// Deterministic.
class BranchDepths {
 public:
  static constexpr std::size_t kMostPoints = 3;

  // `slot_tokens`: tokens with as many bytes of KV as a slot; `attention_cost`: as CacheConfig.
  BranchDepths(std::int64_t slot_tokens, double attention_cost)
      : slot_tokens_(slot_tokens), attention_cost_(attention_cost) {}

  // Shorter runs cost less KV than a slot: no state is worth its place inside them.
  bool is_long(std::int64_t fresh) const { return fresh > slot_tokens_; }

  // A long prompt was computed.
  void brought(std::int64_t prompt_tokens);
  // A request left such a prompt after `depth` tokens. REQUIRES: depth < prompt_tokens.
  void left(std::int64_t prompt_tokens, std::int64_t depth);

  // Return boundaries in the fresh part, ascending, at most kMostPoints, in whole pages. They save
  // the most prefill in expectation, each more than `price` (prefill of one token is 1).
  std::vector<std::int64_t> points(const LongPrompt& prompt, double price) const;

 private:
  static constexpr std::size_t kRows = 16;     // octaves of length
  static constexpr std::size_t kColumns = 32;  // half octaves of distance from the end, in pages

  struct Row {
    double prompts = 0;
    std::array<double, kColumns> left{};
  };

  static std::size_t row_of(std::int64_t prompt_tokens);
  static std::size_t column_of(std::int64_t distance);
  static std::int64_t farthest_in(std::size_t column);
  void fade();
  double prefill(std::int64_t tokens) const;

  std::int64_t slot_tokens_;
  double attention_cost_;
  std::array<Row, kRows> rows_{};
  Row all_{};
  std::int64_t since_fade_ = 0;
};

}  // namespace tasuki::cache
