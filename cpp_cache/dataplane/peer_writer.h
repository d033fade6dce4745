// Stores windows into a peer GPU's memory, sees when they are stored, and sends what announces
// them: transfer/transports/nvlink/transport.py, without the interpreter's lock.
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
#include "dataplane/mailbox.h"
#include "dataplane/piece_table.h"
#include "steps/bell.h"

namespace tasuki::dataplane {

// A peer's arena and gate as addresses in this process, and the value that permits to write.
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
  kDone,        // stored, and announced
  kRefused,     // nothing of it was given to the GPU
  kOutside,     // likewise: a piece leaves either side's registered bytes
  kMisaligned,  // likewise: of a piece
  kFailed,      // it may have landed, or land
};

// One posted window. Whoever posted reads; why and ended_at once it is not pending any more.
struct PeerTransfer {
  std::shared_ptr<PeerEndpoint> endpoint;
  std::string notification;
  std::atomic<Outcome> outcome = Outcome::kPending;
  // Nobody asks any more: what was not announced yet never is.
  std::atomic<bool> released = false;
  std::string why;
  double ended_at = 0;
};

struct PeerWrite {
  std::vector<Piece> pieces;
  std::string notification;
};

// How the store kernel is launched.
struct StoreGrid {
  unsigned programs;
  std::int32_t turn;
  std::int64_t chunk_bytes;
};

// Owns streams, tables, a thread that watches what is on its way, and nothing of the peers. Any
// thread calls; no call but disconnect() and stop() waits for the GPU. Windows that fit one table
// are stored by one launch.
// Invariants:
// 1. A notification is sent after the event behind the window's launch was seen to have passed, by
//    which time every program of it has released its stores at system scope.
// 2. A window is done only if every program found the peer's gate open.
// 3. A table is used again only after its event has passed.
class PeerWriter {
 public:
  // source, source_bytes: this side's arena. Throws CudaError.
  PeerWriter(std::shared_ptr<const CudaContext> context, const Kernel& store, const StoreGrid& grid,
             Address source, std::int64_t source_bytes);
  ~PeerWriter();
  PeerWriter(const PeerWriter&) = delete;
  PeerWriter& operator=(const PeerWriter&) = delete;

  // Also ring this from now on, whenever something posted has ended.
  void ring_at_ends(std::shared_ptr<const Bell> bell);

  // One each, in order; what could not be posted has ended by then. No piece: a notification alone.
  std::vector<std::shared_ptr<PeerTransfer>> post(const std::shared_ptr<PeerEndpoint>& endpoint,
                                                  std::vector<PeerWrite> writes);

  // Blocks until no kernel writes to the peer. What was not announced fails. Idempotent.
  // Throws CudaError.
  void disconnect(PeerEndpoint& endpoint);

  // Blocks until nothing is on its way any more, or the GPU has failed. Idempotent.
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
  using Together = std::span<const std::shared_ptr<PeerTransfer>>;

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
  Bell wake_;
  // Held while something is launched: streams take turns.
  std::mutex launching_;
  std::size_t turn_ = 0;
  std::vector<std::unique_ptr<Stream>> streams_;
  // Of all below; never held beside a call of the driver that could wait.
  std::mutex mutex_;
  std::vector<std::unique_ptr<Table>> free_;
  std::deque<Launch> launched_;
  std::deque<std::shared_ptr<PeerTransfer>> unannounced_;
  std::vector<std::shared_ptr<const Bell>> bells_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tasuki::dataplane
