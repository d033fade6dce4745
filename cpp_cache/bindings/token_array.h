// Token arrays of Python, read in place and never kept.
#pragma once

#include <pybind11/numpy.h>

#include <string>

#include "core/errors.h"
#include "core/ids.h"

namespace tasuki::cache {

// Throws InvalidArgument with the reason.
inline Tokens tokens_of(const pybind11::object& object) {
  if (!pybind11::isinstance<pybind11::array>(object))
    throw InvalidArgument("tokens must be a numpy array");
  const auto array = pybind11::reinterpret_borrow<pybind11::array>(object);
  // Comparing dtype objects would cost more than a short match.
  const pybind11::dtype dtype = array.dtype();
  const bool is_int32 = dtype.kind() == 'i' && dtype.itemsize() == sizeof(Token) &&
                        (dtype.byteorder() == '=' || dtype.byteorder() == '|');
  if (!is_int32) {
    throw InvalidArgument("tokens must be int32, not " + std::string(pybind11::str(array.dtype())));
  }
  if (array.ndim() != 1) {
    throw InvalidArgument("tokens must have 1 dimension, not " + std::to_string(array.ndim()));
  }
  if ((array.flags() & pybind11::array::c_style) == 0) {
    throw InvalidArgument("tokens must be C-contiguous");
  }
  return {static_cast<const Token*>(array.data()), static_cast<std::size_t>(array.size())};
}

}  // namespace tasuki::cache
