#include "bindings/allocation_handle.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "core/errors.h"

namespace py = pybind11;

namespace tasuki::cache {

namespace {

py::object pages_of(AllocationHandle& handle) {
  const std::vector<PageId>& pages = handle.get().pages;
  if (handle.pages.is_none() || handle.pages_seen != pages.size()) {
    py::array_t<std::int32_t> array(static_cast<py::ssize_t>(pages.size()));
    static_assert(sizeof(PageId) == sizeof(std::int32_t));
    std::memcpy(array.mutable_data(), pages.data(), pages.size() * sizeof(PageId));
    array.attr("flags").attr("writeable") = false;
    handle.pages = array;
    handle.pages_seen = pages.size();
  }
  return handle.pages;
}

const Match& match_of(AllocationHandle& handle) {
  // After a load has ended the handle shows the result.
  if (handle.loads && !handle.get().load) {
    handle.match = handle.get().match;
    handle.loads = false;
  }
  return handle.match;
}

std::vector<std::int32_t> raw_slots(const std::vector<SlotId>& slots) {
  std::vector<std::int32_t> out;
  for (const SlotId slot : slots) out.push_back(raw(slot));
  return out;
}

}  // namespace

std::optional<AllocationHandle> handle_of(const CachePtr& cache, std::optional<AllocationId> id) {
  if (!id) return std::nullopt;
  const Allocation& allocation = cache->allocation(*id);
  return AllocationHandle{cache, *id, allocation.match, py::none(), 0, allocation.load.has_value()};
}

AllocationId id_in(const CachePtr& cache, const AllocationHandle& handle) {
  if (handle.cache != cache) throw InvalidArgument("the allocation was cut from another tree");
  return handle.id;
}

void bind_allocations(py::module_& module) {
  py::class_<AllocationHandle>(module, "Allocation")
      .def_property_readonly("id", [](const AllocationHandle& handle) { return raw(handle.id); })
      .def_property_readonly("generation",
                             [](const AllocationHandle& handle) { return raw(handle.id); })
      .def_property_readonly("match", &match_of)
      .def_property_readonly("load",
                             [](const AllocationHandle& handle) -> std::optional<TierLoad> {
                               const auto& load = handle.get().load;
                               if (!load) return std::nullopt;
                               return load->plan;
                             })
      .def_property_readonly("is_void",
                             [](const AllocationHandle& handle) {
                               return handle.get().state == AllocationState::kVoid;
                             })
      .def_property_readonly(
          "cached_tokens",
          [](const AllocationHandle& handle) { return handle.get().cached_tokens; })
      .def_property_readonly("cow_source_slot",
                             [](const AllocationHandle& handle) -> std::optional<std::int32_t> {
                               const auto slot = handle.get().cow_source_slot;
                               if (!slot) return std::nullopt;
                               return raw(*slot);
                             })
      .def_property_readonly("tail_copy",
                             [](const AllocationHandle& handle)
                                 -> std::optional<std::pair<std::int32_t, std::int32_t>> {
                               const auto& copy = handle.get().tail_copy;
                               if (!copy) return std::nullopt;
                               return std::pair(raw(copy->first), raw(copy->second));
                             })
      .def_property_readonly("source_page",
                             [](const AllocationHandle& handle) -> std::optional<std::int32_t> {
                               const auto page = handle.get().source_page;
                               if (!page) return std::nullopt;
                               return raw(*page);
                             })
      .def_property_readonly(
          "shared_pages", [](const AllocationHandle& handle) { return handle.get().shared_pages; })
      .def_property_readonly("pages", &pages_of)
      .def_property_readonly(
          "working_slots",
          [](const AllocationHandle& handle) { return raw_slots(handle.get().working_slots); })
      .def_property_readonly("tokens",
                             [](const AllocationHandle& handle) { return handle.get().tokens(); })
      .def_property_readonly("capacity_tokens", [](const AllocationHandle& handle) {
        return handle.get().capacity_tokens();
      });
}

}  // namespace tasuki::cache
