#include "cpp_cache/policies.h"

#include <array>
#include <utility>

#include "cpp_cache/lru_policy.h"
#include "cpp_cache/marconi_policy.h"
#include "cpp_cache/value_policy.h"

namespace tasuki::cache {

namespace {

constexpr std::array<std::pair<std::string_view, PolicyKind>, 4> kNames{{
    {"lru", PolicyKind::kLru},
    {"value", PolicyKind::kValue},
    {"auto", PolicyKind::kAuto},
    {"marconi", PolicyKind::kMarconi},
}};

constexpr double kMarconiAlpha = 0.5;

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
    case PolicyKind::kMarconi:
      return std::make_unique<MarconiPolicy>(kMarconiAlpha);
    case PolicyKind::kValue:
    case PolicyKind::kAuto:
      break;
  }
  return std::make_unique<ValuePolicy>();
}

}  // namespace tasuki::cache
