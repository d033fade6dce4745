// Tests of layer chunks waiting for their ticks.
#include <doctest/doctest.h>

#include <set>

#include "peer.h"

using namespace dataplane_tests;

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
  const auto released = sending.hold(endpoint, sending.window(4, 1));
  released->release();
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
  CHECK(until([&] { return released->outcome == Outcome::kCancelled; }));
  for (const auto& each : {first, second, third, released, late}) {
    CHECK(each->posted_at == 0);
    CHECK_FALSE(each->digest->done);
  }
  CHECK(peer.mailbox.read().empty());
  CHECK(std::ranges::all_of(peer.arena, [](char byte) { return byte == '\xA5'; }));
}

TEST_CASE("a lease that ends while another peer is disconnected is over when that is done") {
  Sending sending;
  Peer peer;
  Peer leaving;
  const auto endpoint = peer.endpoint();
  const auto beside = leaving.endpoint();
  imagined::stuck() = true;
  sending.writer->post(beside, {{{{0, 0, 16}}, "slow"}});
  std::thread disconnecting([&] { sending.writer->disconnect(*beside); });
  CHECK(until([&] { return !beside->open; }));
  const auto held = sending.hold(endpoint, sending.window(0, 1));
  sending.lease->until = now() + 0.1;
  sending.steps->tick();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  imagined::stuck() = false;
  disconnecting.join();
  CHECK(until([&] { return held->outcome == Outcome::kUnleased; }));
  CHECK(held->posted_at == 0);
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
