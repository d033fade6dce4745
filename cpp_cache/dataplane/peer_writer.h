// Writer of layer chunks into a peer GPU's memory: stores, watches and announces them without the
// interpreter's lock. See transfer/transports/nvlink/transport.py.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "dataplane/cuda_objects.h"
#include "dataplane/digest_queue.h"
#include "dataplane/mailbox.h"
#include "dataplane/piece_table.h"
#include "steps/bell.h"
#include "steps/step_counter.h"

namespace tasuki::dataplane {

// A peer's arena and gate as addresses in this process, and the gate's value while it is open.
struct PeerTarget {
  Address arena;
  Address gate;
  std::int64_t permission;
  std::int64_t arena_bytes;
};

// A connected peer. Closed by PeerWriter::disconnect.
struct PeerEndpoint {
  PeerTarget target;
  MailboxWriter mailbox;
  std::atomic<bool> open = true;

  PeerEndpoint(const PeerTarget& peer, std::string_view mailbox_name, std::string secret)
      : target(peer), mailbox(mailbox_name, std::move(secret)) {}
};

enum class Outcome {
  kPending,
  kDone,        // stored and announced
  kRefused,     // not posted to the GPU
  kCancelled,   // not posted, because it was cancelled
  kUnleased,    // not posted, because the peer's lease had ended
  kOutside,     // not posted: a piece leaves either side's registered bytes
  kMisaligned,  // not posted: a piece is misaligned
  kFailed,      // may have arrived, or may still arrive
};

// End of a peer's permission to write. The renewing thread sets it; a poster reads it just before
// posting.
struct WriteLease {
  std::atomic<double> until = 0;

  bool holds() const { return now() <= until; }
};

// One posted layer chunk. The poster reads why and ended_at once it is no longer pending.
struct PeerTransfer {
  std::shared_ptr<PeerEndpoint> endpoint;
  std::string notification;
  std::atomic<Outcome> outcome = Outcome::kPending;
  // Time of its launch; 0 before.
  std::atomic<double> posted_at = 0;
  // Cancel it: if no part was posted, none will be.
  std::atomic<bool> cancelled = false;
  // Digest of its bytes, requested with the post; none if not requested.
  std::shared_ptr<AskedDigest> digest;
  std::atomic<bool> released = false;
  std::string why;
  double ended_at = 0;

  // Give it up: a part not posted or announced yet never is.
  void release() {
    cancelled = true;
    released = true;
  }
};

struct PeerWrite {
  std::vector<Piece> pieces;
  std::string notification;
};

// A layer chunk to post when a counter has reached `tick`. digest: requested then.
struct HeldWrite {
  PeerWrite write;
  std::int64_t tick;
  std::shared_ptr<AskedDigest> digest;
};

// Common parts of held layer chunks: the counter, the lease checked right before each post, and the
// digester.
struct Holding {
  std::shared_ptr<StepCounter> steps;
  std::shared_ptr<const WriteLease> lease;
  std::shared_ptr<DigestQueue> digests;
};

// Launch parameters of the store kernel.
struct StoreGrid {
  unsigned programs;
  std::int32_t turn;
  std::int64_t chunk_bytes;
};

// Owns streams, tables and a thread to watch layer chunks in flight; owns nothing of the peers. Any
// thread calls; only disconnect() and stop() wait for the GPU. One launch stores all chunks fitting
// one table. Invariants:
// 1. A notification is sent after the event behind the chunk's launch has passed. By then every
//    program of it has released its stores at system scope.
// 2. A chunk is done only if every program found the peer's gate open.
// 3. A table is used again only after its event has passed.
// 4. A held chunk is posted only after its tick, while its lease holds, and never after its
//    cancellation. Chunks of one tick leave in the order in which they were held.
class PeerWriter {
 public:
  // source, source_bytes: this side's arena. Throws CudaError.
  PeerWriter(std::shared_ptr<const CudaContext> context, const Kernel& store, const StoreGrid& grid,
             Address source, std::int64_t source_bytes);
  ~PeerWriter();
  PeerWriter(const PeerWriter&) = delete;
  PeerWriter& operator=(const PeerWriter&) = delete;

  // Also ring this bell from now on when a posted chunk has ended.
  void ring_at_ends(std::shared_ptr<const Bell> bell);

  // Post layer chunks and return one transfer each, in order; a chunk not posted gives an ended
  // transfer. No segment: a notification alone.
  std::vector<std::shared_ptr<PeerTransfer>> post(const std::shared_ptr<PeerEndpoint>& endpoint,
                                                  std::vector<PeerWrite> writes);

  // Hold the chunks instead: the thread here posts each once its tick has come.
  std::vector<std::shared_ptr<PeerTransfer>> hold(const std::shared_ptr<PeerEndpoint>& endpoint,
                                                  std::vector<HeldWrite> writes,
                                                  const Holding& holding);
  // Cancel the post, if it has not happened yet.
  void cancel(PeerTransfer& transfer);

  // Block until no kernel writes to the peer. Layer chunks without an announcement fail.
  // Idempotent. Throws CudaError.
  void disconnect(PeerEndpoint& endpoint);

  // Block until no layer chunk is in flight, or the GPU has failed. Chunks not announced because of
  // a full mailbox fail. Idempotent.
  void stop();

 private:
  struct Table {
    Table(const CudaDriver& driver, std::size_t pieces_at_most);

    std::size_t capacity;
    PinnedWords host;
    DeviceWords device;
    Event event;

    std::int64_t& flag() const { return host.words().back(); }
  };
  struct Launch {
    std::unique_ptr<Table> table;
    std::vector<std::shared_ptr<PeerTransfer>> transfers;
  };
  struct Held {
    std::shared_ptr<PeerTransfer> transfer;
    std::vector<Piece> pieces;
    std::int64_t tick;
    Holding holding;
  };
  using Together = std::span<const std::shared_ptr<PeerTransfer>>;

  std::shared_ptr<PeerTransfer> begun(const std::shared_ptr<PeerEndpoint>& endpoint,
                                      PeerWrite& write);
  bool post_ready();
  void post_held(std::vector<Held> ready);
  // REQUIRES: launching_.
  void launch_together(const PeerEndpoint& endpoint, std::span<const Piece> pieces,
                       Together transfers);
  std::unique_ptr<Table> take(std::size_t pieces);
  void run();
  bool collect();
  bool announce();
  void over(PeerTransfer& transfer, Outcome outcome, std::string why = {});

  std::shared_ptr<const CudaContext> context_;
  Kernel store_;
  StoreGrid grid_;
  Address source_;
  std::int64_t source_bytes_;
  std::shared_ptr<Bell> wake_ = std::make_shared<Bell>();
  // Held during a post, so streams take turns.
  std::mutex launching_;
  std::size_t turn_ = 0;
  std::vector<std::unique_ptr<Stream>> streams_;
  // Guards all below; never held during a driver call that could wait.
  std::mutex mutex_;
  std::vector<std::unique_ptr<Table>> free_;
  // Tables of failed launches: never used again.
  std::vector<std::unique_ptr<Table>> lost_;
  std::vector<Held> held_;
  std::deque<Launch> launched_;
  std::deque<std::shared_ptr<PeerTransfer>> unannounced_;
  std::vector<std::shared_ptr<const Bell>> bells_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tasuki::dataplane
