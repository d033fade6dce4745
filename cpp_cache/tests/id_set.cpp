// IdSet against std::set, across the borders of its words and levels.
#include "alloc/id_set.h"

#include <doctest/doctest.h>

#include <random>
#include <set>
#include <vector>

namespace tasuki::cache {
namespace {

TEST_CASE("a set of ids answers as std::set does") {
  std::mt19937 random(7);
  for (const std::int64_t limit : {1, 63, 64, 65, 4096, 4097, 300'000}) {
    IdSet ids(limit);
    std::set<std::int64_t> model;
    for (int step = 0; step < 2'000; ++step) {
      const std::int64_t id = static_cast<std::int64_t>(random()) % limit;
      if (random() % 3 == 0) {
        ids.erase(id);
        model.erase(id);
      } else {
        ids.insert(id);
        model.insert(id);
      }
      REQUIRE(ids.contains(id) == model.contains(id));
      REQUIRE(ids.size() == model.size());
      if (!model.empty()) REQUIRE(*ids.begin() == *model.begin());
    }
    CHECK(std::vector(ids.begin(), ids.end()) == std::vector(model.begin(), model.end()));
    for (const std::int64_t id : model) ids.erase(id);
    CHECK(ids.empty());
    CHECK(ids.begin() == ids.end());
  }
}

}  // namespace
}  // namespace tasuki::cache
