// CheckpointKind as a true enum.Enum of Python; py::enum_ makes none.
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <utility>
#include <vector>

#include "core/checkpoint_kind.h"

namespace tasuki::cache {

// Owns the enumeration; a copy refers to the same.
class CheckpointKinds {
 public:
  explicit CheckpointKinds(const pybind11::module_& module);

  const pybind11::object& enumeration() const { return kinds_; }
  pybind11::object of(const std::optional<CheckpointKind>& kind) const;
  // Throws InvalidArgument if the object is no member.
  CheckpointKind value_of(const pybind11::object& member) const;

 private:
  pybind11::object kinds_;
  std::vector<std::pair<pybind11::object, CheckpointKind>> members_;
};

}  // namespace tasuki::cache
