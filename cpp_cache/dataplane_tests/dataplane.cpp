// The data plane's native parts over an imagined GPU: everything in its order, nothing slept
// through.
#include <doctest/doctest.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "dataplane/digest_queue.h"
#include "dataplane/gpu_digester.h"
#include "dataplane/mailbox.h"
#include "dataplane/peer_writer.h"
#include "dataplane/piece_table.h"
#include "dataplane/stream_ticks.h"
#include "digest/row_digester.h"
#include "digest/window_digester.h"
#include "imagined_gpu.h"
#include "steps/bell.h"
#include "steps/step_counter.h"

using namespace tasuki::dataplane;
namespace digest = tasuki::digest;

namespace {

constexpr double kHang = 20.0;
constexpr std::int64_t kChunk = 1 << 10;

template <typename Condition>
bool until(const Condition& condition) {
  for (const double began = now(); now() - began < kHang;) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return false;
}

// store_kernel.py's, one program after another.
void store(unsigned programs, unsigned, void** parameters) {
  const auto word = [&](int index) { return *static_cast<std::uint64_t*>(parameters[index]); };
  const auto source = word(0), arena = word(1);
  const auto* const gate = reinterpret_cast<const std::atomic<std::int64_t>*>(word(2));
  auto* const table = reinterpret_cast<std::int64_t*>(word(4));
  const auto pieces = *static_cast<std::int32_t*>(parameters[5]);
  auto* const flag = reinterpret_cast<std::int32_t*>(word(7));
  if (gate->load() != static_cast<std::int64_t>(word(3))) return;
  const std::int64_t* const local = table + 2;
  for (std::int32_t piece = 0; piece < pieces; ++piece) {
    std::memcpy(reinterpret_cast<void*>(arena + 16 * local[pieces + piece]),
                reinterpret_cast<const void*>(source + 16 * local[piece]),
                static_cast<std::size_t>(16 * local[2 * pieces + piece]));
  }
  table[0] += programs;
  *flag = 1;
}

const imagined::Kernel kStore{store, {8, 8, 8, 8, 8, 4, 4, 8}};

// digest_kernel.py's two, one program after another.
constexpr unsigned kParts = 4;

void sum(unsigned rows, unsigned, void** parameters) {
  const auto pointer = [&](int index) { return *static_cast<std::uint64_t**>(parameters[index]); };
  for (unsigned row = 0; row < rows; ++row) {
    const std::uint64_t* const words = pointer(0) + pointer(2)[row];
    std::uint64_t* const partial = pointer(4) + kParts * row;
    std::fill(partial, partial + kParts, 0);
    for (std::uint64_t word = 0; word < pointer(3)[row]; ++word) {
      partial[word % kParts] += words[word] * pointer(1)[word];
    }
  }
}

void mix(unsigned rows, unsigned, void** parameters) {
  const auto pointer = [&](int index) { return *static_cast<std::uint64_t**>(parameters[index]); };
  for (unsigned row = 0; row < rows; ++row) {
    const std::uint64_t* const partial = pointer(0) + kParts * row;
    const std::uint64_t value = std::accumulate(partial, partial + kParts, std::uint64_t{0});
    pointer(3)[pointer(2)[row]] += digest::splitmix64(pointer(1)[row] ^ value);
  }
}

const imagined::Kernel kSum{sum, {8, 8, 8, 8, 8}};
const imagined::Kernel kMix{mix, {8, 8, 8, 8}};

std::shared_ptr<const CudaContext> imagined_context() {
  return std::make_shared<CudaContext>(imagined::driver(), 0);
}

std::string unique_name() {
  static std::atomic<int> number = 0;
  return "tasuki-doctest-" + std::to_string(getpid()) + "-" + std::to_string(++number);
}

constexpr std::size_t kArena = 1 << 16;

// A peer in this process: its arena, gate and mailbox.
struct Peer {
  std::string name = unique_name();
  std::string secret = std::string(16, 's');
  Mailbox mailbox{name, secret};
  std::vector<char> arena = std::vector<char>(kArena, '\xA5');
  std::atomic<std::int64_t> gate = 77;

  std::shared_ptr<PeerEndpoint> endpoint() {
    const PeerTarget target{reinterpret_cast<Address>(arena.data()),
                            reinterpret_cast<Address>(&gate), 77, kArena};
    return std::make_shared<PeerEndpoint>(target, name, secret);
  }
};

struct Writing {
  std::vector<char> source = std::vector<char>(kArena);
  std::unique_ptr<PeerWriter> writer;

  Writing() {
    std::mt19937 random(5);
    for (char& byte : source) byte = static_cast<char>(random());
    writer = std::make_unique<PeerWriter>(imagined_context(), Kernel{kStore.handle(), 16, 0},
                                          StoreGrid{264, 4, kChunk},
                                          reinterpret_cast<Address>(source.data()), kArena);
  }
};

}  // namespace

TEST_CASE("a bell ends the wait that it comes before, once") {
  Bell bell;
  CHECK_FALSE(bell.wait(0));
  bell.ring();
  bell.ring();
  CHECK(bell.wait(0));
  CHECK_FALSE(bell.wait(0.001));
  std::thread ringing([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    bell.ring();
  });
  CHECK(bell.wait(kHang));
  ringing.join();
}

TEST_CASE("a bell watches what can be read until it is forgotten") {
  Bell bell;
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  bell.watch(ends[0]);
  CHECK(bell.wait(0));
  CHECK_FALSE(bell.wait(0));
  REQUIRE(write(ends[1], "x", 1) == 1);
  CHECK(bell.wait(kHang));
  CHECK(bell.wait(0));
  bell.forget(ends[0]);
  CHECK(bell.wait(0));
  CHECK_FALSE(bell.wait(0));
  close(ends[0]);
  close(ends[1]);
}

TEST_CASE("an alarm rings from its tick on, and a tick that has come is its answer") {
  StepCounter steps;
  const auto bell = std::make_shared<Bell>();
  steps.tick();
  CHECK_FALSE(steps.ring_at(bell, 3));
  CHECK_FALSE(bell->wait(0));
  steps.tick();
  CHECK_FALSE(bell->wait(0));
  steps.tick();
  CHECK(bell->wait(0));
  steps.tick();
  CHECK(bell->wait(0));
  CHECK(steps.ring_at(bell, 4));
  CHECK_FALSE(steps.ring_at(bell, std::nullopt));
  steps.tick();
  CHECK_FALSE(bell->wait(0));
}

TEST_CASE("the counter reports each tick and end on the thread that ticks") {
  std::vector<std::pair<std::int64_t, bool>> reported;
  StepCounter steps([&](std::int64_t value, bool ended) { reported.emplace_back(value, ended); });
  CHECK(std::isinf(steps.end_of(1)));
  steps.tick();
  CHECK(steps.end_of(1) == steps.times_of(1, 2).front());
  steps.end_forward();
  steps.tick();
  CHECK(std::isinf(steps.end_of(2)));
  CHECK(reported == std::vector<std::pair<std::int64_t, bool>>{{1, false}, {1, true}, {2, false}});
  CHECK_FALSE(steps.wait_for(3, 0.001));
  for (int tick = 0; tick < 5000; ++tick) steps.tick();
  CHECK_FALSE(steps.times_of(1, 2).front());
  CHECK(steps.times_of(5002, 5003).front());
  CHECK_FALSE(steps.times_of(5003, 5004).front());
}

TEST_CASE("layers tick in their order, behind the work that was in the stream") {
  const auto steps = std::make_shared<StepCounter>();
  std::atomic<int> done = 0;
  {
    imagined::Stream stream;
    StreamTicks ticks(imagined_context(), steps);
    for (int layer = 1; layer <= 40; ++layer) {
      stream.give([&, layer] {
        CHECK(steps->value() < layer);
        done = layer;
      });
      ticks.tick_behind(&stream);
    }
    ticks.end_behind(&stream);
    for (int layer = 1; layer <= 40; ++layer) {
      REQUIRE(steps->wait_for(layer, kHang));
      CHECK(done >= layer);
    }
    CHECK(until([&] { return !std::isinf(steps->end_of(40)); }));
  }
}

TEST_CASE("a device that fails is reported by the next layer") {
  const auto steps = std::make_shared<StepCounter>();
  imagined::Stream stream;
  StreamTicks ticks(imagined_context(), steps);
  imagined::broken() = true;
  stream.give([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  ticks.tick_behind(&stream);
  CHECK(until([&] {
    try {
      ticks.tick_behind(&stream);
      return false;
    } catch (const CudaError& error) {
      return std::string(error.what()).find("not counted any more") != std::string::npos;
    }
  }));
  stream.synchronize();
  imagined::broken() = false;
}

TEST_CASE("pieces outside of either side are not inside, near 2^63 too") {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  CHECK(inside(std::vector<Piece>{{0, 16, 16}, {16, 0, 16}}, 32, 32));
  for (const Piece& bad : std::vector<Piece>{{17, 0, 16},
                                             {0, 17, 16},
                                             {-16, 0, 16},
                                             {0, -16, 16},
                                             {0, 0, 0},
                                             {0, 0, -16},
                                             {most - 7, 0, 16},
                                             {0, 0, most}}) {
    CHECK_FALSE(inside(std::vector<Piece>{bad}, 32, 32));
  }
  CHECK_FALSE(aligned(std::vector<Piece>{{0, 8, 16}}));
  CHECK(aligned(std::vector<Piece>{{0, 32, 16}}));
}

TEST_CASE("windows land before they are announced, each once, whatever is posted beside them") {
  Writing writing;
  Peer peers[2];
  const std::shared_ptr<PeerEndpoint> endpoints[2] = {peers[0].endpoint(), peers[1].endpoint()};
  const auto bell = std::make_shared<Bell>();
  writing.writer->ring_at_ends(bell);
  constexpr int kThreads = 4;
  constexpr int kPosts = 25;
  // Window n of a peer fills its own 16 bytes of the arena.
  std::atomic<int> next[2] = {0, 0};
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::vector<std::shared_ptr<PeerTransfer>> all;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937 random(static_cast<unsigned>(thread));
      for (int post = 0; post < kPosts; ++post) {
        const std::size_t to = random() % 2;
        std::vector<PeerWrite> writes(1 + random() % 3);
        for (PeerWrite& write : writes) {
          const int number = next[to]++;
          write.notification = std::to_string(number);
          if (random() % 4) write.pieces.push_back({16 * number, 16 * number, 16});
        }
        const auto posted = writing.writer->post(endpoints[to], writes);
        const std::scoped_lock lock(mutex);
        all.insert(all.end(), posted.begin(), posted.end());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::map<std::size_t, std::set<std::string>> announced;
  CHECK(until([&] {
    for (std::size_t to = 0; to < 2; ++to) {
      for (const std::string& note : peers[to].mailbox.read()) {
        CHECK(announced[to].insert(note).second);
      }
    }
    return announced[0].size() == static_cast<std::size_t>(next[0]) &&
           announced[1].size() == static_cast<std::size_t>(next[1]);
  }));
  CHECK(until([&] {
    return std::ranges::all_of(all,
                               [](const auto& each) { return each->outcome == Outcome::kDone; });
  }));
  CHECK(bell->wait(kHang));
  for (const auto& endpoint : endpoints) writing.writer->disconnect(*endpoint);
}

TEST_CASE("an announced window's bytes are the source's") {
  Writing writing;
  Peer peer;
  const auto endpoint = peer.endpoint();
  std::mt19937 random(9);
  std::vector<std::int64_t> order(kArena / 64);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::shuffle(order, random);
  std::map<std::string, std::vector<Piece>> sent;
  for (int window = 0; window < 60; ++window) {
    std::vector<Piece> pieces;
    for (int piece = 0; piece < 10; ++piece) {
      const std::int64_t place = order[static_cast<std::size_t>(10 * window + piece)] * 64;
      pieces.push_back({static_cast<std::int64_t>(kArena) - 64 - place, place, 64});
    }
    sent[std::to_string(window)] = pieces;
    writing.writer->post(endpoint, {{pieces, std::to_string(window)}});
  }
  std::size_t seen = 0;
  CHECK(until([&] {
    for (const std::string& note : peer.mailbox.read()) {
      ++seen;
      for (const auto& [from, to, length] : sent.at(note)) {
        CHECK(std::equal(writing.source.begin() + from, writing.source.begin() + from + length,
                         peer.arena.begin() + to));
      }
    }
    return seen == sent.size();
  }));
}

TEST_CASE("a gate that is shut, a closed peer and bad pieces each fail their own windows") {
  Writing writing;
  Peer peer;
  const auto endpoint = peer.endpoint();
  const std::vector<Piece> good{{0, 0, 16}};
  auto posted = writing.writer->post(
      endpoint, {{good, "a"}, {{{0, 0, 8}}, "b"}, {{{0, kArena, 16}}, "c"}, {{}, "d"}});
  CHECK(posted[1]->outcome == Outcome::kMisaligned);
  CHECK(posted[2]->outcome == Outcome::kOutside);
  CHECK(until([&] {
    return posted[0]->outcome == Outcome::kDone && posted[3]->outcome == Outcome::kDone;
  }));
  peer.gate = 78;
  posted = writing.writer->post(endpoint, {{good, "e"}});
  CHECK(until([&] { return posted[0]->outcome == Outcome::kFailed; }));
  CHECK(posted[0]->why.find("shut its gate") != std::string::npos);
  CHECK(peer.mailbox.read() == std::vector<std::string>{"d", "a"});
  writing.writer->disconnect(*endpoint);
  writing.writer->disconnect(*endpoint);
  posted = writing.writer->post(endpoint, {{good, "f"}});
  CHECK(posted[0]->outcome == Outcome::kRefused);
}

TEST_CASE("a mailbox that is full delays what announces, and one that is gone fails it") {
  Writing writing;
  Peer peer;
  Peer other;
  const auto endpoint = peer.endpoint();
  const auto beside = other.endpoint();
  std::vector<std::shared_ptr<PeerTransfer>> posted;
  for (int number = 0; number < 3000; ++number) {
    const auto made = writing.writer->post(endpoint, {{{}, std::to_string(number)}});
    posted.insert(posted.end(), made.begin(), made.end());
  }
  const auto behind = writing.writer->post(beside, {{{{0, 0, 16}}, "beside"}});
  CHECK(until([&] { return behind[0]->outcome == Outcome::kDone; }));
  CHECK(posted.back()->outcome == Outcome::kPending);
  std::vector<std::string> read;
  CHECK(until([&] {
    const auto more = peer.mailbox.read();
    read.insert(read.end(), more.begin(), more.end());
    return read.size() == posted.size();
  }));
  for (std::size_t number = 0; number < read.size(); ++number) {
    REQUIRE(read[number] == std::to_string(number));
  }
  peer.mailbox.close();
  const auto late = writing.writer->post(endpoint, {{{}, "late"}});
  CHECK(until([&] { return late[0]->outcome == Outcome::kFailed; }));
  CHECK(late[0]->why.find("gone") != std::string::npos);
}

TEST_CASE("what is released before it was announced never is, and stop() waits for the rest") {
  Writing writing;
  Peer peer;
  const auto endpoint = peer.endpoint();
  const auto posted =
      writing.writer->post(endpoint, {{{{0, 0, 16}}, "never"}, {{{16, 16, 16}}, "told"}});
  posted[0]->released = true;
  writing.writer->stop();
  CHECK(posted[1]->outcome == Outcome::kDone);
  CHECK(peer.mailbox.read() == std::vector<std::string>{"told"});
}

TEST_CASE("a GPU that fails fails what is on its way") {
  Writing writing;
  Peer peer;
  const auto endpoint = peer.endpoint();
  imagined::broken() = true;
  const auto posted = writing.writer->post(endpoint, {{{{0, 0, 16}}, "lost"}});
  CHECK(until([&] { return posted[0]->outcome == Outcome::kFailed; }));
  CHECK(posted[0]->why.find("the GPU failed") != std::string::npos);
  imagined::broken() = false;
  writing.writer->disconnect(*endpoint);
}

namespace {

// An arena on an imagined GPU that windows leave from, with its digests.
struct Sending : Writing {
  std::vector<std::uint64_t> keys = std::vector<std::uint64_t>(64, 3);
  digest::WindowGeometry geometry{{{{{0, 2, 0}}, {}}}, 2, 2};
  std::shared_ptr<DigestQueue> digests =
      std::make_shared<DigestQueue>(std::make_shared<GpuDigester>(
          imagined_context(), DigestKernels{{kSum.handle(), 4, 0}, {kMix.handle(), 1, 0}, kParts},
          reinterpret_cast<Address>(source.data()), reinterpret_cast<Address>(keys.data()),
          geometry));
  std::shared_ptr<StepCounter> steps = std::make_shared<StepCounter>();
  std::shared_ptr<WriteLease> lease = std::make_shared<WriteLease>();

  Sending() { lease->until = now() + kHang; }

  // Window `number`, which is one page of 16 bytes.
  HeldWrite window(std::int64_t number, std::int64_t tick, std::int64_t layers = 1) {
    const digest::WindowPlaces places{1, 1, 0, layers, number, {}, std::nullopt};
    return {{{{16 * number, 16 * number, 16}}, std::to_string(number)},
            tick,
            std::make_shared<AskedDigest>(places, std::vector<std::int64_t>{number})};
  }
  std::shared_ptr<PeerTransfer> hold(const std::shared_ptr<PeerEndpoint>& endpoint,
                                     HeldWrite write) {
    return writer->hold(endpoint, {std::move(write)}, {steps, lease, digests}).front();
  }
};

}  // namespace

TEST_CASE("what is held leaves with its tick, not before, and with its bytes of then") {
  Sending sending;
  Peer peer;
  const auto endpoint = peer.endpoint();
  std::mt19937 random(4);
  std::vector<std::shared_ptr<PeerTransfer>> held;
  constexpr std::int64_t kLayers = 60;
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    held.push_back(sending.hold(endpoint, sending.window(layer, layer + 1)));
  }
  std::vector<std::uint64_t> expected;
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    // Written right before its tick, as by a forward.
    for (int byte = 0; byte < 16; ++byte) {
      sending.source[static_cast<std::size_t>(16 * layer + byte)] = static_cast<char>(random());
    }
    if (random() % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    CHECK(held[static_cast<std::size_t>(layer)]->posted_at == 0);
    const double before = now();
    sending.steps->tick();
    if (layer % 7 == 0) {
      CHECK(until([&] { return held[static_cast<std::size_t>(layer)]->posted_at >= before; }));
    }
  }
  GpuDigester twin(imagined_context(), {{kSum.handle(), 4, 0}, {kMix.handle(), 1, 0}, kParts},
                   reinterpret_cast<Address>(sending.source.data()),
                   reinterpret_cast<Address>(sending.keys.data()), sending.geometry);
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    const PeerTransfer& transfer = *held[static_cast<std::size_t>(layer)];
    CHECK(until([&] {
      peer.mailbox.read();
      return transfer.outcome == Outcome::kDone && transfer.digest->done;
    }));
    CHECK_FALSE(transfer.digest->why);
    CHECK(transfer.digest->value == twin.digest(std::vector{transfer.digest->places}).front());
    CHECK(transfer.posted_at <= transfer.ended_at);
  }
  CHECK(std::equal(sending.source.begin(), sending.source.begin() + 16 * kLayers,
                   peer.arena.begin()));
}

TEST_CASE("what is held is not posted once it is cancelled, unleased or its peer is gone") {
  Sending sending;
  Peer peer;
  const auto endpoint = peer.endpoint();
  const auto first = sending.hold(endpoint, sending.window(0, 1));
  const auto second = sending.hold(endpoint, sending.window(1, 2));
  const auto third = sending.hold(endpoint, sending.window(2, 3));
  const auto bell = std::make_shared<Bell>();
  sending.writer->ring_at_ends(bell);
  sending.writer->cancel(*first);
  CHECK(until([&] { return first->outcome == Outcome::kCancelled; }));
  CHECK(bell->wait(kHang));
  sending.lease->until = now() - 1;
  sending.steps->tick();
  sending.steps->tick();
  CHECK(until([&] { return second->outcome == Outcome::kUnleased; }));
  sending.lease->until = now() + kHang;
  sending.writer->disconnect(*endpoint);
  sending.writer->cancel(*third);
  CHECK(until([&] { return third->outcome != Outcome::kPending; }));
  const auto late = sending.hold(endpoint, sending.window(3, 0));
  CHECK(late->outcome == Outcome::kRefused);
  for (const auto& each : {first, second, third, late}) {
    CHECK(each->posted_at == 0);
    CHECK_FALSE(each->digest->done);
  }
  CHECK(peer.mailbox.read().empty());
  CHECK(std::ranges::all_of(peer.arena, [](char byte) { return byte == '\xA5'; }));
}

TEST_CASE(
    "a window that cannot be digested fails alone, and the end of a writer leaves nothing held") {
  Sending sending;
  Peer peer;
  const auto endpoint = peer.endpoint();
  std::vector<HeldWrite> writes;
  for (std::int64_t number = 0; number < 9; ++number) {
    writes.push_back(sending.window(number, 1, number == 4 ? 2 : 1));
  }
  const auto held = sending.writer->hold(endpoint, std::move(writes),
                                         {sending.steps, sending.lease, sending.digests});
  const auto never = sending.hold(endpoint, sending.window(10, 99));
  sending.steps->tick();
  for (std::size_t number = 0; number < held.size(); ++number) {
    CHECK(until(
        [&] { return held[number]->digest->done && held[number]->outcome == Outcome::kDone; }));
    CHECK(held[number]->digest->why.has_value() == (number == 4));
  }
  sending.writer->stop();
  CHECK(never->outcome == Outcome::kRefused);
  CHECK(sending.hold(endpoint, sending.window(11, 0))->outcome == Outcome::kRefused);
}

TEST_CASE("ticks, holds and cancellations that cross lose no window and post none twice") {
  Sending sending;
  Peer peer;
  const auto endpoint = peer.endpoint();
  constexpr int kWindows = 600;
  std::atomic<bool> over = false;
  std::thread ticking([&] {
    std::mt19937 random(1);
    while (!over) {
      sending.steps->tick();
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 60));
    }
  });
  std::mt19937 random(2);
  std::vector<std::shared_ptr<PeerTransfer>> held;
  for (int number = 0; number < kWindows; ++number) {
    const std::int64_t tick = sending.steps->value() + random() % 6;
    held.push_back(sending.hold(endpoint, sending.window(number, tick)));
    if (random() % 5 == 0) sending.writer->cancel(*held[random() % held.size()]);
    if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 80));
  }
  std::multiset<std::string> announced;
  const auto ended = [&] {
    for (const std::string& note : peer.mailbox.read()) announced.insert(note);
    return std::ranges::all_of(held, [](const auto& each) {
      return each->outcome == Outcome::kDone || each->outcome == Outcome::kCancelled;
    });
  };
  CHECK(until(ended));
  over = true;
  ticking.join();
  ended();
  for (int number = 0; number < kWindows; ++number) {
    const bool done = held[static_cast<std::size_t>(number)]->outcome == Outcome::kDone;
    CHECK(announced.count(std::to_string(number)) == (done ? 1 : 0));
    CHECK((held[static_cast<std::size_t>(number)]->posted_at > 0) == done);
  }
}

TEST_CASE("windows that are digested together have their own digests, from many threads") {
  constexpr std::int64_t kLongest = 40;
  std::vector<std::uint64_t> words(5000);
  std::mt19937_64 random(3);
  for (std::uint64_t& word : words) word = random();
  const std::span<const std::byte> memory = std::as_bytes(std::span(words));
  digest::WindowGeometry geometry{{}, 50, 400};
  geometry.layers.push_back({{{0, 20, 0}, {20, 20, std::uint64_t{1} << 33}}, {}});
  geometry.layers.push_back({{}, {{7, kLongest, std::uint64_t{1} << 32}}});
  const digest::RowDigester rows(memory, kLongest, digest::Instructions::kScalar);
  const digest::WindowDigester twin(rows, geometry);
  std::vector<std::uint64_t> keys(kLongest);
  for (std::size_t index = 0; index < keys.size(); ++index) {
    std::uint64_t key = (index + 1) * 0x9E3779B97F4A7C15u;
    key = (key ^ (key >> 30)) * 0xBF58476D1CE4E5B9u;
    key = (key ^ (key >> 27)) * 0x94D049BB133111EBu;
    keys[index] = (key ^ (key >> 31)) | 1;
  }
  GpuDigester ours(imagined_context(), {{kSum.handle(), 4, 0}, {kMix.handle(), 1, 0}, kParts},
                   reinterpret_cast<Address>(words.data()), reinterpret_cast<Address>(keys.data()),
                   geometry);
  CHECK(ours.digest(std::vector<digest::WindowPlaces>{}).empty());
  std::vector<std::thread> threads;
  for (unsigned thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937 own(thread);
      for (int call = 0; call < 15; ++call) {
        const auto below = [&](unsigned most) { return static_cast<std::int64_t>(own() % most); };
        std::vector<std::vector<std::int64_t>> pages(1 + own() % 5);
        std::vector<digest::WindowPlaces> windows;
        for (auto& each : pages) {
          for (std::int64_t page = below(4); page > 0; --page) each.push_back(below(90));
          windows.push_back({own(), own(), below(2), 2, below(9), each, std::nullopt});
          if (below(2) == 1) windows.back().slot = below(10);
        }
        const auto found = ours.digest(windows);
        REQUIRE(found.size() == windows.size());
        for (std::size_t index = 0; index < windows.size(); ++index) {
          CHECK(found[index] == twin.digest(windows[index]));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  // More rows than the first tables hold.
  std::vector<std::int64_t> many(9000);
  for (std::int64_t& page : many) page = static_cast<std::int64_t>(random() % 90);
  const digest::WindowPlaces large{1, 2, 0, 2, 0, many, 3};
  CHECK(ours.digest(std::vector{large, large}) ==
        std::vector<std::uint64_t>(2, twin.digest(large)));
  CHECK_THROWS_AS(ours.digest(std::vector<digest::WindowPlaces>{{1, 2, 0, 3, 0, many, 3}}),
                  std::out_of_range);
}
