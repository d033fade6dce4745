#include "cpp_cache/policies.h"

#include <array>
#include <utility>

#include "cpp_cache/lru_policy.h"
#include "cpp_cache/value_policy.h"

namespace tasuki::cache {

namespace {

constexpr std::array<std::pair<std::string_view, PolicyKind>, 4> kNames{{
    {"lru", PolicyKind::kLru},
    {"value", PolicyKind::kValue},
    {"hazard", PolicyKind::kHazard},
    {"auto", PolicyKind::kAuto},
}};

}  // namespace

std::optional<PolicyKind> policy_named(std::string_view name) {
  for (const auto& [known, kind] : kNames) {
    if (known == name) return kind;
  }
  return std::nullopt;
}

std::string_view name_of(PolicyKind policy) {
  for (const auto& [known, kind] : kNames) {
    if (kind == policy) return known;
  }
  return {};
}

std::unique_ptr<EvictionPolicy> make_policy(PolicyKind kind) {
  switch (kind) {
    case PolicyKind::kLru:
      return std::make_unique<LruPolicy>();
    case PolicyKind::kHazard:
      return std::make_unique<ValuePolicy>(ValueIndex::kHazard);
    case PolicyKind::kValue:
    case PolicyKind::kAuto:
      break;
  }
  return std::make_unique<ValuePolicy>(ValueIndex::kGittins);
}

}  // namespace tasuki::cache
