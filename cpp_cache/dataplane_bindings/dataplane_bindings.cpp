#include "dataplane_bindings/dataplane_bindings.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "dataplane/cuda_driver.h"
#include "dataplane/digest_queue.h"
#include "dataplane/gpu_digester.h"
#include "dataplane/mailbox.h"
#include "dataplane/peer_writer.h"
#include "dataplane/piece_table.h"
#include "dataplane/stream_ticks.h"
#include "steps/bell.h"
#include "steps/step_counter.h"

namespace py = pybind11;
using namespace py::literals;

namespace tasuki::dataplane {

namespace {

using WithoutLock = py::call_guard<py::gil_scoped_release>;
using Words = py::array_t<std::int64_t, py::array::c_style>;

// If the interpreter ends meanwhile, a daemon's thread is unwound while it requests the lock. So it
// must not request the lock in a destructor.
template <typename Wait>
bool waited(const Wait& wait) {
  PyThreadState* const state = PyEval_SaveThread();
  const bool answer = wait();
  PyEval_RestoreThread(state);
  return answer;
}

// Destroy the held object without the interpreter's lock, because a joined thread may wait for the
// lock. The last owner may be a thread without the lock.
template <typename Held>
struct EndsWithoutLock {
  void operator()(Held* held) const {
    std::optional<py::gil_scoped_release> others_may_run;
    if (PyGILState_Check() != 0) others_may_run.emplace();
    delete held;
  }
};

template <typename Held, typename... Arguments>
std::unique_ptr<Held, EndsWithoutLock<Held>> made(Arguments&&... arguments) {
  return std::unique_ptr<Held, EndsWithoutLock<Held>>(
      new Held(std::forward<Arguments>(arguments)...));
}

StepCounter::Report reported_to(const py::object& report) {
  if (report.is_none()) return {};
  // May be released on any thread, with the lock.
  const std::shared_ptr<py::object> held(new py::object(report), [](py::object* object) {
    const py::gil_scoped_acquire lock;
    delete object;
  });
  return [held](std::int64_t value, bool ended) {
    const py::gil_scoped_acquire lock;
    (*held)(value, ended);
  };
}

std::vector<Piece> pieces_of(const Words& rows) {
  if (rows.ndim() != 2 || rows.shape(1) != 3) throw py::value_error("pieces are [n, 3]");
  std::vector<Piece> pieces(static_cast<std::size_t>(rows.shape(0)));
  const std::int64_t* from = rows.data();
  for (Piece& piece : pieces) {
    std::copy(from, from + piece.size(), piece.begin());
    from += piece.size();
  }
  return pieces;
}

std::int64_t filled(Words& table, const Words& pieces, std::int64_t chunk_bytes) {
  const std::vector<Piece> rows = pieces_of(pieces);
  if (table.ndim() != 1 || static_cast<std::size_t>(table.size()) < table_words(rows.size())) {
    throw py::value_error("the table is too short");
  }
  const std::span words(table.mutable_data(), static_cast<std::size_t>(table.size()));
  return fill_table(rows, chunk_bytes, words);
}

py::list arrived(Mailbox& mailbox) {
  std::vector<std::string> words;
  {
    const py::gil_scoped_release others_may_run;
    words = mailbox.read();
  }
  py::list list;
  for (const std::string& word : words) list.append(py::bytes(word));
  return list;
}

// room, generation, first and end layer, first page, pages, slot
using Given = std::tuple<std::uint64_t, std::uint64_t, std::int64_t, std::int64_t, std::int64_t,
                         std::vector<std::int64_t>, std::optional<std::int64_t>>;

using GivenKernel = std::tuple<std::uint64_t, unsigned, unsigned>;

Kernel kernel_of(const GivenKernel& given) {
  const auto& [function, warps, shared_bytes] = given;
  return {function, warps, shared_bytes};
}

std::vector<std::shared_ptr<PeerTransfer>> posted(
    PeerWriter& writer, const std::shared_ptr<PeerEndpoint>& endpoint,
    const std::vector<std::pair<Words, py::bytes>>& given) {
  std::vector<PeerWrite> writes;
  writes.reserve(given.size());
  for (const auto& [pieces, notification] : given) {
    writes.push_back({pieces_of(pieces), notification});
  }
  const py::gil_scoped_release others_may_run;
  return writer.post(endpoint, std::move(writes));
}

// pieces, notification, tick, and the layer chunk in the form of digests
using GivenHeld = std::tuple<Words, py::bytes, std::int64_t, Given>;

std::vector<std::shared_ptr<PeerTransfer>> held(PeerWriter& writer,
                                                const std::shared_ptr<PeerEndpoint>& endpoint,
                                                const std::vector<GivenHeld>& given,
                                                const std::shared_ptr<StepCounter>& steps,
                                                const std::shared_ptr<WriteLease>& lease,
                                                const std::shared_ptr<DigestQueue>& digests) {
  std::vector<HeldWrite> writes;
  writes.reserve(given.size());
  for (const auto& [pieces, notification, tick, window] : given) {
    const auto& [room, generation, first, end, first_page, pages, slot] = window;
    const digest::WindowPlaces places{room, generation, first, end, first_page, {}, slot};
    writes.push_back(
        {{pieces_of(pieces), notification}, tick, std::make_shared<AskedDigest>(places, pages)});
  }
  const py::gil_scoped_release others_may_run;
  return writer.hold(endpoint, std::move(writes), {steps, lease, digests});
}

std::vector<std::uint64_t> digests_of(GpuDigester& digester, const std::vector<Given>& windows) {
  const py::gil_scoped_release others_may_run;
  std::vector<digest::WindowPlaces> placed;
  placed.reserve(windows.size());
  for (const auto& [room, generation, first, end, first_page, pages, slot] : windows) {
    placed.push_back({room, generation, first, end, first_page, pages, slot});
  }
  return digester.digest(placed);
}

std::uint64_t digest_of_rows(GpuDigester& digester, const Words& offsets, const Words& lengths,
                             const Words& seeds) {
  const auto span_of = [](const Words& column) {
    return std::span(column.data(), static_cast<std::size_t>(column.size()));
  };
  const digest::Rows rows{span_of(offsets), span_of(lengths), span_of(seeds)};
  if (rows.offsets.size() != rows.lengths.size() || rows.offsets.size() != rows.seeds.size()) {
    throw py::value_error("columns of rows are equally long");
  }
  const py::gil_scoped_release others_may_run;
  return digester.digest(rows);
}

void bind_steps(py::module_& module) {
  py::class_<Bell, std::shared_ptr<Bell>>(module, "Bell")
      .def(py::init<>())
      .def("ring", &Bell::ring)
      .def("watch", &Bell::watch, "descriptor"_a)
      .def("forget", &Bell::forget, "descriptor"_a)
      .def(
          "wait",
          [](Bell& self, double seconds) { return waited([&] { return self.wait(seconds); }); },
          "seconds"_a);
  py::class_<StepCounter, std::shared_ptr<StepCounter>>(module, "StepCounter")
      .def(py::init([](const py::object& report) {
             return std::make_shared<StepCounter>(reported_to(report));
           }),
           "report"_a = py::none())
      .def_property_readonly("value", &StepCounter::value)
      .def("tick", &StepCounter::tick)
      .def("end_forward", &StepCounter::end_forward)
      .def("end_of", &StepCounter::end_of, "tick"_a)
      .def(
          "wait_for",
          [](const StepCounter& self, std::int64_t tick, double timeout) {
            return waited([&] { return self.wait_for(tick, timeout); });
          },
          "tick"_a, "timeout"_a)
      .def(
          "time_of",
          [](const StepCounter& self, std::int64_t tick) {
            return self.times_of(tick, tick + 1).front();
          },
          "tick"_a)
      .def("times_of", &StepCounter::times_of, "first"_a, "end"_a)
      .def(
          "ring_at",
          [](StepCounter& self, const std::shared_ptr<Bell>& bell,
             std::optional<std::int64_t> tick) { return self.ring_at(bell, tick); },
          "bell"_a, "tick"_a);
}

void bind_gpu(py::module_& module) {
  py::class_<CudaContext, std::shared_ptr<CudaContext>>(module, "CudaContext")
      .def(py::init([](int device) {
             return std::make_shared<CudaContext>(CudaDriver::load(), device);
           }),
           "device"_a, WithoutLock());
  py::class_<StreamTicks, std::unique_ptr<StreamTicks, EndsWithoutLock<StreamTicks>>>(module,
                                                                                      "StreamTicks")
      .def(py::init([](const std::shared_ptr<CudaContext>& context,
                       const std::shared_ptr<StepCounter>& steps) {
             return made<StreamTicks>(context, steps);
           }),
           "context"_a, "steps"_a)
      .def(
          "tick_behind",
          [](StreamTicks& self, std::uintptr_t stream) {
            self.tick_behind(reinterpret_cast<StreamHandle>(stream));
          },
          "stream"_a, WithoutLock())
      .def(
          "end_behind",
          [](StreamTicks& self, std::uintptr_t stream) {
            self.end_behind(reinterpret_cast<StreamHandle>(stream));
          },
          "stream"_a, WithoutLock());
  py::class_<GpuDigester, std::shared_ptr<GpuDigester>>(module, "GpuDigester")
      .def(py::init([](const std::shared_ptr<CudaContext>& context, const GivenKernel& sum,
                       const GivenKernel& mix, unsigned parts, Address words, Address keys,
                       const digest::WindowGeometry& geometry) {
             const DigestKernels kernels{kernel_of(sum), kernel_of(mix), parts};
             return made<GpuDigester>(context, kernels, words, keys, geometry);
           }),
           "context"_a, "sum"_a, "mix"_a, "parts"_a, "words"_a, "keys"_a, "geometry"_a)
      .def("digest_all", &digests_of, "windows"_a)
      .def("digest", &digest_of_rows, py::arg("offsets").noconvert(),
           py::arg("lengths").noconvert(), py::arg("seeds").noconvert());
}

void bind_writer(py::module_& module) {
  module.def("piece_table_words", &table_words, "pieces"_a);
  module.def("fill_piece_table", &filled, py::arg("table").noconvert(),
             py::arg("pieces").noconvert(), "chunk_bytes"_a);
  py::class_<Mailbox>(module, "Mailbox")
      .def(py::init([](const std::string& name, const py::bytes& secret) {
             return std::make_unique<Mailbox>(name, secret);
           }),
           "name"_a, "secret"_a)
      .def_property_readonly("descriptor", &Mailbox::descriptor)
      .def_property_readonly("dropped", &Mailbox::dropped)
      .def("read", &arrived)
      .def("close", &Mailbox::close);
  py::class_<WriteLease, std::shared_ptr<WriteLease>>(module, "WriteLease")
      .def(py::init<>())
      .def_property_readonly("holds", &WriteLease::holds)
      .def("extend", [](WriteLease& self, double until) { self.until = until; }, "until"_a);
  py::class_<AskedDigest, std::shared_ptr<AskedDigest>>(module, "AskedDigest")
      .def_property_readonly("done", [](const AskedDigest& self) { return self.done.load(); })
      .def("result", [](const AskedDigest& self) {
        if (!self.done) throw std::logic_error("a digest was read before it was done");
        if (self.why) throw std::runtime_error(*self.why);
        return self.value;
      });
  py::class_<DigestQueue, std::shared_ptr<DigestQueue>>(module, "DigestQueue")
      .def(py::init([](const std::shared_ptr<GpuDigester>& digester) {
             return made<DigestQueue>(digester);
           }),
           "digester"_a)
      .def(
          "ring_at_answers",
          [](DigestQueue& self, const std::shared_ptr<Bell>& bell) { self.ring_at_answers(bell); },
          "bell"_a);
  py::class_<PeerEndpoint, std::shared_ptr<PeerEndpoint>>(module, "PeerEndpoint")
      .def(py::init([](const std::string& mailbox, const py::bytes& secret, Address arena,
                       std::int64_t arena_bytes, Address gate, std::int64_t permission) {
             return std::make_shared<PeerEndpoint>(PeerTarget{arena, gate, permission, arena_bytes},
                                                   mailbox, secret);
           }),
           "mailbox"_a, "secret"_a, "arena"_a, "arena_bytes"_a, "gate"_a, "permission"_a);
  py::enum_<Outcome>(module, "PeerOutcome")
      .value("PENDING", Outcome::kPending)
      .value("DONE", Outcome::kDone)
      .value("REFUSED", Outcome::kRefused)
      .value("CANCELLED", Outcome::kCancelled)
      .value("UNLEASED", Outcome::kUnleased)
      .value("OUTSIDE", Outcome::kOutside)
      .value("MISALIGNED", Outcome::kMisaligned)
      .value("FAILED", Outcome::kFailed);
  py::class_<PeerTransfer, std::shared_ptr<PeerTransfer>>(module, "PeerTransfer")
      .def_property_readonly(
          "outcome",
          [](const PeerTransfer& self) { return self.outcome.load(std::memory_order_acquire); })
      .def_property_readonly("why",
                             [](const PeerTransfer& self) {
                               const bool pending = self.outcome.load(std::memory_order_acquire) ==
                                                    Outcome::kPending;
                               return pending ? std::string() : self.why;
                             })
      .def_property_readonly(
          "ended_at",
          [](const PeerTransfer& self) -> std::optional<double> {
            if (self.outcome.load(std::memory_order_acquire) == Outcome::kPending) {
              return std::nullopt;
            }
            return self.ended_at;
          })
      .def_property_readonly("posted_at",
                             [](const PeerTransfer& self) -> std::optional<double> {
                               const double at = self.posted_at;
                               return at == 0 ? std::nullopt : std::optional(at);
                             })
      .def_property_readonly("digest", [](const PeerTransfer& self) { return self.digest; })
      .def("release", &PeerTransfer::release);
  py::class_<PeerWriter, std::unique_ptr<PeerWriter, EndsWithoutLock<PeerWriter>>>(module,
                                                                                   "PeerWriter")
      .def(py::init([](const std::shared_ptr<CudaContext>& context, const GivenKernel& store,
                       unsigned programs, std::int32_t turn, std::int64_t chunk_bytes,
                       Address source, std::int64_t source_bytes) {
             const StoreGrid grid{programs, turn, chunk_bytes};
             return made<PeerWriter>(context, kernel_of(store), grid, source, source_bytes);
           }),
           "context"_a, "store"_a, "programs"_a, "turn"_a, "chunk_bytes"_a, "source"_a,
           "source_bytes"_a)
      .def(
          "ring_at_ends",
          [](PeerWriter& self, const std::shared_ptr<Bell>& bell) { self.ring_at_ends(bell); },
          "bell"_a)
      .def("post", &posted, "endpoint"_a, "writes"_a)
      .def("hold", &held, "endpoint"_a, "writes"_a, "steps"_a, "lease"_a, "digests"_a)
      .def("cancel", &PeerWriter::cancel, "transfer"_a)
      .def(
          "disconnect",
          [](PeerWriter& self, const std::shared_ptr<PeerEndpoint>& endpoint) {
            self.disconnect(*endpoint);
          },
          "endpoint"_a, WithoutLock())
      .def("stop", &PeerWriter::stop, WithoutLock());
}

}  // namespace

void bind_dataplane(py::module_& module) {
  bind_steps(module);
  bind_gpu(module);
  bind_writer(module);
}

}  // namespace tasuki::dataplane
