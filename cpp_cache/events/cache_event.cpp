#include "events/cache_event.h"

namespace tasuki::cache {

std::optional<EventStream> stream_named(std::string_view name) {
  if (name == "all") return EventStream::kAll;
  if (name == "usable") return EventStream::kUsable;
  if (name == "spelled") return EventStream::kSpelled;
  return std::nullopt;
}

std::string_view name_of(EventKind kind) {
  constexpr std::string_view kNames[] = {"page_stored",        "page_removed", "checkpoint_stored",
                                         "checkpoint_removed", "cleared",      "checkpoint_moved"};
  return kNames[static_cast<std::size_t>(kind)];
}

}  // namespace tasuki::cache
