// Tests of bells, the step counter, and ticks behind a stream. No wait misses a wakeup.
#include <doctest/doctest.h>
#include <poll.h>
#include <unistd.h>

#include <cmath>

#include "dataplane/stream_ticks.h"
#include "peer.h"

using namespace dataplane_tests;

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
