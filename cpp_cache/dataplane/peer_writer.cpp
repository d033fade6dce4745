#include "dataplane/peer_writer.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <algorithm>
#include <map>
#include <utility>

#include "steps/step_counter.h"

namespace tasuki::dataplane {

namespace {

// More than the pages of a prefill chunk in a few layers. Rarer, larger layer chunks get a table of
// their own size.
constexpr std::size_t kTablePieces = 1024;
constexpr std::size_t kTables = 16;
// The table and first stores of a layer chunk overlap the last stores of the one before.
constexpr std::size_t kStreams = 2;
// A layer chunk takes some ten times as long.
constexpr double kPollSeconds = 20e-6;
// Delay before the next announcement to a peer with a full mailbox.
constexpr double kFullSeconds = 1e-3;
constexpr double kIdleSeconds = 1.0;

}  // namespace

PeerWriter::Table::Table(const CudaDriver& driver, std::size_t pieces_at_most)
    : capacity(pieces_at_most),
      host(driver, table_words(pieces_at_most) + 1),
      device(driver, table_words(pieces_at_most)),
      event(driver) {}

PeerWriter::PeerWriter(std::shared_ptr<const CudaContext> context, const Kernel& store,
                       const StoreGrid& grid, Address source, std::int64_t source_bytes)
    : context_(std::move(context)),
      store_(store),
      grid_(grid),
      source_(source),
      source_bytes_(source_bytes) {
  const CudaContext::Current current(*context_);
  for (std::size_t stream = 0; stream < kStreams; ++stream) {
    streams_.push_back(std::make_unique<Stream>(context_->driver()));
  }
  for (std::size_t table = 0; table < kTables; ++table) {
    free_.push_back(std::make_unique<Table>(context_->driver(), kTablePieces));
  }
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "tasuki-writes");
}

PeerWriter::~PeerWriter() { stop(); }

void PeerWriter::stop() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  wake_->ring();
  if (thread_.joinable()) thread_.join();
  const std::scoped_lock both(launching_, mutex_);
  try {
    const CudaContext::Current current(*context_);
    free_.clear();
    // After a failure of the GPU there is nothing to wait for.
    for (const auto& stream : streams_) context_->driver().stream_synchronize(stream->handle());
    lost_.clear();
    streams_.clear();
  } catch (const CudaError&) {
    // A failed context has freed them.
  }
}

void PeerWriter::ring_at_ends(std::shared_ptr<const Bell> bell) {
  const std::scoped_lock lock(mutex_);
  bells_.push_back(std::move(bell));
}

// A faulty layer chunk has ended by then.
std::shared_ptr<PeerTransfer> PeerWriter::begun(const std::shared_ptr<PeerEndpoint>& endpoint,
                                                PeerWrite& write) {
  auto transfer = std::make_shared<PeerTransfer>();
  transfer->endpoint = endpoint;
  transfer->notification = std::move(write.notification);
  if (!inside(write.pieces, source_bytes_, endpoint->target.arena_bytes)) {
    over(*transfer, Outcome::kOutside);
  } else if (!aligned(write.pieces)) {
    over(*transfer, Outcome::kMisaligned);
  } else if (!endpoint->open) {
    over(*transfer, Outcome::kRefused, "the connection is closed");
  }
  return transfer;
}

std::vector<std::shared_ptr<PeerTransfer>> PeerWriter::post(
    const std::shared_ptr<PeerEndpoint>& endpoint, std::vector<PeerWrite> writes) {
  std::vector<std::shared_ptr<PeerTransfer>> transfers;
  std::vector<Held> ready;
  for (PeerWrite& write : writes) {
    transfers.push_back(begun(endpoint, write));
    if (transfers.back()->outcome != Outcome::kPending) continue;
    ready.push_back({transfers.back(), std::move(write.pieces), 0, {}});
  }
  post_held(std::move(ready));
  wake_->ring();
  return transfers;
}

std::vector<std::shared_ptr<PeerTransfer>> PeerWriter::hold(
    const std::shared_ptr<PeerEndpoint>& endpoint, std::vector<HeldWrite> writes,
    const Holding& holding) {
  std::vector<std::shared_ptr<PeerTransfer>> transfers;
  {
    const std::scoped_lock lock(mutex_);
    for (HeldWrite& held : writes) {
      transfers.push_back(begun(endpoint, held.write));
      transfers.back()->digest = std::move(held.digest);
      if (transfers.back()->outcome != Outcome::kPending) continue;
      if (stopping_) {
        over(*transfers.back(), Outcome::kRefused, "the writer has stopped");
        continue;
      }
      held_.push_back({transfers.back(), std::move(held.write.pieces), held.tick, holding});
    }
  }
  wake_->ring();
  return transfers;
}

void PeerWriter::cancel(PeerTransfer& transfer) {
  transfer.cancelled = true;
  wake_->ring();
}

// Return true if a tick may have come without a wakeup.
bool PeerWriter::post_ready() {
  std::vector<Held> ready;
  std::map<std::shared_ptr<StepCounter>, std::int64_t> awaited;
  {
    const std::scoped_lock lock(mutex_);
    std::map<const StepCounter*, std::int64_t> values;
    std::vector<Held> waiting;
    for (Held& held : held_) {
      StepCounter* const steps = held.holding.steps.get();
      const auto [value, added] = values.try_emplace(steps, 0);
      if (added) value->second = steps->value();
      const PeerTransfer& transfer = *held.transfer;
      if (stopping_ || transfer.cancelled || !transfer.endpoint->open ||
          held.tick <= value->second) {
        ready.push_back(std::move(held));
        continue;
      }
      const auto [first, added_now] = awaited.try_emplace(held.holding.steps, held.tick);
      if (!added_now) first->second = std::min(first->second, held.tick);
      waiting.push_back(std::move(held));
    }
    held_ = std::move(waiting);
  }
  const bool any = !ready.empty();
  std::ranges::stable_sort(ready, {}, &Held::tick);
  post_held(std::move(ready));
  bool missed = false;
  for (const auto& [steps, tick] : awaited) missed |= steps->ring_at(wake_, tick);
  if (any) {
    const std::scoped_lock lock(mutex_);
    for (const auto& bell : bells_) bell->ring();
  }
  return missed;
}

void PeerWriter::post_held(std::vector<Held> ready) {
  if (ready.empty()) return;
  // Take this lock before the leases are read: disconnect() holds it while a kernel runs.
  const std::scoped_lock turn(launching_);
  std::vector<std::shared_ptr<PeerTransfer>> together;
  std::vector<Piece> pieces;
  std::shared_ptr<DigestQueue> digests;
  const auto launch = [&] {
    if (!together.empty()) launch_together(*together.front()->endpoint, pieces, together);
    if (digests) {
      for (const auto& transfer : together) {
        if (transfer->digest) digests->ask(transfer->digest);
      }
    }
    together.clear();
    pieces.clear();
  };
  for (Held& held : ready) {
    PeerTransfer& transfer = *held.transfer;
    const Holding& holding = held.holding;
    if (transfer.cancelled) {
      over(transfer, Outcome::kCancelled);
      continue;
    }
    if (!transfer.endpoint->open) {
      over(transfer, Outcome::kRefused, "the connection is closed");
      continue;
    }
    if (holding.steps && holding.steps->value() < held.tick) {
      over(transfer, Outcome::kRefused, "the writer has stopped");
      continue;
    }
    const bool fits = pieces.size() + held.pieces.size() <= kTablePieces;
    if (!together.empty() && (!fits || together.front()->endpoint != transfer.endpoint)) launch();
    // No slow work is allowed between this check and the launch.
    if (holding.lease && !holding.lease->holds()) {
      over(transfer, Outcome::kUnleased);
      continue;
    }
    transfer.posted_at = now();
    digests = holding.digests;
    if (held.pieces.empty()) {
      if (digests && transfer.digest) digests->ask(transfer.digest);
      const std::scoped_lock lock(mutex_);
      unannounced_.push_back(held.transfer);
      continue;
    }
    pieces.insert(pieces.end(), held.pieces.begin(), held.pieces.end());
    together.push_back(held.transfer);
  }
  launch();
}

void PeerWriter::launch_together(const PeerEndpoint& endpoint, std::span<const Piece> pieces,
                                 Together transfers) {
  std::unique_ptr<Table> table;
  Outcome lost = Outcome::kRefused;
  try {
    const CudaContext::Current current(*context_);
    const CudaDriver& driver = context_->driver();
    // disconnect() decides under `launching_`; afterwards no launch to the peer is allowed.
    if (!endpoint.open) throw CudaError("the connection is closed");
    table = take(pieces.size());
    const std::span words = table->host.words().first(table_words(pieces.size()));
    const std::int64_t chunks = fill_table(pieces, grid_.chunk_bytes, words);
    table->flag() = 0;
    if (streams_.empty()) throw CudaError("the writer has stopped");
    const StreamHandle stream = streams_[turn_++ % streams_.size()]->handle();
    driver.require(
        driver.copy_to_device(table->device.address(), words.data(), words.size_bytes(), stream),
        "cuMemcpyHtoDAsync");
    const std::int64_t turns = (chunks + grid_.turn - 1) / grid_.turn;
    const PeerTarget& target = endpoint.target;
    store_.launch(driver, static_cast<unsigned>(std::min<std::int64_t>(grid_.programs, turns)), 1,
                  stream, source_, target.arena, target.gate, target.permission,
                  table->device.address(), static_cast<std::int32_t>(pieces.size()), grid_.turn,
                  reinterpret_cast<Address>(&table->flag()));
    // From here on the bytes arrive, even if no outcome is seen.
    lost = Outcome::kFailed;
    table->event.record(stream);
  } catch (const CudaError& error) {
    for (const auto& transfer : transfers) {
      over(*transfer, lost, std::string("could not post: ") + error.what());
    }
    // Enqueued work may still read the table.
    const std::scoped_lock entry(mutex_);
    if (table) lost_.push_back(std::move(table));
    return;
  }
  const std::scoped_lock entry(mutex_);
  launched_.push_back({std::move(table), {transfers.begin(), transfers.end()}});
}

std::unique_ptr<PeerWriter::Table> PeerWriter::take(std::size_t pieces) {
  {
    const std::scoped_lock lock(mutex_);
    const auto fits = std::ranges::find_if(
        free_, [&](const std::unique_ptr<Table>& table) { return table->capacity >= pieces; });
    if (fits != free_.end()) {
      std::unique_ptr<Table> table = std::move(*fits);
      free_.erase(fits);
      return table;
    }
  }
  return std::make_unique<Table>(context_->driver(), std::max(kTablePieces, pieces));
}

// Events are queried without a context; all else belongs to the posting threads.
void PeerWriter::run() {
  // Without this a short wait would take longer than requested.
  prctl(PR_SET_TIMERSLACK, 1000);
  while (true) {
    if (post_ready()) continue;
    double rest = kPollSeconds;
    {
      const std::scoped_lock lock(mutex_);
      const bool collected = collect();
      const bool announced = announce();
      if (collected || announced) {
        for (const auto& bell : bells_) bell->ring();
      }
      if (launched_.empty()) rest = unannounced_.empty() ? kIdleSeconds : kFullSeconds;
      if (rest == kIdleSeconds && stopping_ && held_.empty()) return;
    }
    wake_->wait(rest);
  }
}

bool PeerWriter::collect() {
  bool any = false;
  for (auto launch = launched_.begin(); launch != launched_.end();) {
    try {
      if (!launch->table->event.passed()) {
        ++launch;
        continue;
      }
    } catch (const CudaError& error) {
      for (const auto& transfer : launch->transfers) {
        over(*transfer, Outcome::kFailed, std::string("the GPU failed: ") + error.what());
      }
      lost_.push_back(std::move(launch->table));
      launch = launched_.erase(launch);
      any = true;
      continue;
    }
    const bool stored = launch->table->flag() != 0;
    for (const auto& transfer : launch->transfers) {
      if (stored) {
        unannounced_.push_back(transfer);
      } else {
        over(*transfer, Outcome::kFailed, "the receiver has shut its gate; connect anew");
      }
    }
    free_.push_back(std::move(launch->table));
    launch = launched_.erase(launch);
    any = true;
  }
  return any;
}

bool PeerWriter::announce() {
  bool any = false;
  std::vector<const PeerEndpoint*> full;
  for (auto each = unannounced_.begin(); each != unannounced_.end();) {
    PeerTransfer& transfer = **each;
    try {
      // A full mailbox delays its own peer's notifications only, and keeps their order.
      const PeerEndpoint* const peer = transfer.endpoint.get();
      const bool waits = std::ranges::find(full, peer) != full.end();
      if (!transfer.released &&
          (waits || !transfer.endpoint->mailbox.write(transfer.notification))) {
        if (!stopping_) {
          if (!waits) full.push_back(peer);
          ++each;
          continue;
        }
        over(transfer, Outcome::kFailed, "the writer has stopped, and the peer does not read");
      } else {
        over(transfer, Outcome::kDone);
      }
    } catch (const MailboxGone& gone) {
      over(transfer, Outcome::kFailed, gone.what());
    }
    each = unannounced_.erase(each);
    any = true;
  }
  return any;
}

void PeerWriter::over(PeerTransfer& transfer, Outcome outcome, std::string why) {
  transfer.why = std::move(why);
  transfer.ended_at = now();
  transfer.outcome.store(outcome, std::memory_order_release);
}

void PeerWriter::disconnect(PeerEndpoint& endpoint) {
  const std::scoped_lock lock(launching_);
  if (!endpoint.open.exchange(false)) return;
  {
    const std::scoped_lock entry(mutex_);
    endpoint.mailbox.close();
  }
  // Unmapping under a writing kernel would break this process's context.
  const CudaContext::Current current(*context_);
  for (const auto& stream : streams_) stream->synchronize();
}

}  // namespace tasuki::dataplane
