// The Python module. Its other parts are bound in files of their own.
#include "bindings/allocation_handle.h"
#include "bindings/cache_bindings.h"
#include "bindings/checkpoint_kinds.h"
#include "bindings/digest_bindings.h"
#include "bindings/event_bindings.h"
#include "bindings/value_bindings.h"
#include "bindings/view_bindings.h"
#include "core/ids.h"
#include "dataplane_bindings/dataplane_bindings.h"

PYBIND11_MODULE(_cpp_cache, module) {
  using namespace tasuki::cache;
  module.attr("PAGE_TOKENS") = kPageTokens;
  const CheckpointKinds kinds(module);
  module.attr("CheckpointKind") = kinds.enumeration();
  bind_errors(module);
  bind_values(module, kinds);
  bind_transfers(module);
  bind_allocations(module);
  CacheClass cache = bind_cache(module, kinds);
  bind_events(module, cache, kinds);
  bind_evictions(module, kinds);
  bind_views(module, cache, kinds);
  tasuki::digest::bind_digests(module);
  tasuki::dataplane::bind_dataplane(module);
}
