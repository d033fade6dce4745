#include "bindings/checkpoint_kinds.h"

#include "core/errors.h"

namespace py = pybind11;
using namespace py::literals;

namespace tasuki::cache {

namespace {

constexpr std::pair<const char*, CheckpointKind> kKinds[] = {
    {"PROMPT_END", CheckpointKind::kPromptEnd}, {"TURN_END", CheckpointKind::kTurnEnd},
    {"BRANCH", CheckpointKind::kBranch},        {"MARK", CheckpointKind::kMark},
    {"INTERIOR", CheckpointKind::kInterior},    {"MESSAGE_END", CheckpointKind::kMessageEnd},
};

}  // namespace

CheckpointKinds::CheckpointKinds(const py::module_& module) {
  py::list values;
  for (const auto& [name, kind] : kKinds) {
    values.append(py::make_tuple(name, py::str(name).attr("lower")()));
  }
  kinds_ = py::module_::import("enum").attr("Enum")("CheckpointKind", values,
                                                    "module"_a = module.attr("__name__"));
  for (const auto& [name, kind] : kKinds) members_.emplace_back(kinds_[name], kind);
}

py::object CheckpointKinds::of(const std::optional<CheckpointKind>& kind) const {
  if (!kind) return py::none();
  return members_[static_cast<std::size_t>(*kind)].first;
}

CheckpointKind CheckpointKinds::value_of(const py::object& member) const {
  // Members are singletons: comparing addresses is all it takes.
  for (const auto& [known, value] : members_) {
    if (member.is(known)) return value;
  }
  throw InvalidArgument("kind must be a CheckpointKind");
}

}  // namespace tasuki::cache
