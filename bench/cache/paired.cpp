// One build of the cache behind C calls, so that two builds run in turn in one process: paired.py.
#include <time.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/factory.h"

namespace {

using namespace tasuki::cache;

struct Work {
  PrefixCache cache;
  std::vector<Token> tokens;
  std::int64_t length;

  Tokens prompt(std::int64_t number) const {
    return Tokens(tokens).subspan(static_cast<std::size_t>(number * length),
                                  static_cast<std::size_t>(length));
  }
};

CacheConfig shape(std::int64_t slabs) {
  CacheConfig config{};
  config.slabs = slabs;
  config.blocks_per_slab = 24 * 8;
  config.pages_per_slab = 24;
  config.max_ghost_nodes = 4096;
  config.attention_cost = 3e-5;
  return config;
}

AllocationTerms terms(std::int64_t length) {
  AllocationTerms terms{};
  terms.capacity_tokens = length;
  terms.working_slots = 1;
  return terms;
}

std::int64_t cpu_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

}  // namespace

extern "C" {

// A cache that holds `count` prompts of `length` tokens but for the last, each with a state behind
// it. tokens: [count * length].
__attribute__((visibility("default"))) void* tasuki_open(const std::int32_t* tokens,
                                                         std::int64_t count, std::int64_t length) {
  const std::int64_t slabs = count * (length / kPageTokens / 24 + 2) + 64;
  auto* const work =
      new Work{make_prefix_cache(shape(slabs)), {tokens, tokens + count * length}, length};
  for (std::int64_t i = 0; i < count; ++i) {
    const Tokens kept = work->prompt(i).first(static_cast<std::size_t>(length - 1));
    const AllocationId id = work->cache.allocate(kept, "", terms(length - 1)).value();
    const SlotId slot = work->cache.allocation(id).working_slots.front();
    work->cache.insert(id, length - 1, slot, CheckpointKind::kTurnEnd);
    work->cache.release(id);
  }
  return work;
}

// Nanoseconds of this thread for a match, an allocation and its release of each of the prompts from
// `first` on, which are all but a token in the cache; -1 where one is not.
__attribute__((visibility("default"))) std::int64_t tasuki_run(void* handle, std::int64_t first,
                                                               std::int64_t count) {
  Work& work = *static_cast<Work*>(handle);
  const std::int64_t began = cpu_ns();
  std::int64_t usable = 0;
  for (std::int64_t i = first; i < first + count; ++i) {
    const Tokens prompt = work.prompt(i);
    usable += work.cache.match(prompt, "", std::nullopt).usable_tokens;
    const AllocationId id = work.cache.allocate(prompt, "", terms(work.length)).value();
    work.cache.release(id);
  }
  const std::int64_t spent = cpu_ns() - began;
  return usable == count * (work.length - 1) ? spent : -1;
}

__attribute__((visibility("default"))) void tasuki_close(void* handle) {
  delete static_cast<Work*>(handle);
}

}  // extern "C"
