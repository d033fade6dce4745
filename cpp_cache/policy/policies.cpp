#include "policy/policies.h"

#include "policy/lru_policy.h"
#include "policy/marconi_policy.h"
#include "policy/value_policy.h"

namespace tasuki::cache {

namespace {

constexpr double kMarconiAlpha = 0.5;

}  // namespace

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

std::unique_ptr<EvictionPolicy> make_policy(PolicyKind kind, const EvictionPolicy& arena) {
  const ReuseModel* const learnt = arena.model();
  return learnt != nullptr ? std::make_unique<ValuePolicy>(*learnt) : make_policy(kind);
}

}  // namespace tasuki::cache
