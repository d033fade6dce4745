// Tests of posted layer chunks: in place before their announcement, each failing alone.
#include <doctest/doctest.h>

#include <ctime>
#include <map>
#include <mutex>
#include <set>

#include "peer.h"

using namespace dataplane_tests;

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
  // Layer chunk n of a peer fills its own 16 bytes of the arena.
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
      writing.writer->post(endpoint, {{{{0, 0, 16}}, "never"}, {{{16, 16, 16}}, "kept"}});
  posted[0]->release();
  writing.writer->stop();
  CHECK(posted[1]->outcome == Outcome::kDone);
  CHECK(peer.mailbox.read() == std::vector<std::string>{"kept"});
}

TEST_CASE("a peer that does not read costs its writer no core, and does not hold its end") {
  Writing writing;
  Peer peer;
  const auto endpoint = peer.endpoint();
  std::vector<PeerWrite> writes(3000);
  const auto posted = writing.writer->post(endpoint, std::move(writes));
  CHECK(until([&] { return posted.front()->outcome == Outcome::kDone; }));
  const std::clock_t began = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  CHECK(static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC < 0.08);
  std::atomic<bool> stopped = false;
  std::thread stopping([&] {
    writing.writer->stop();
    stopped = true;
  });
  CHECK(until([&] { return stopped.load(); }));
  CHECK(posted.back()->outcome == Outcome::kFailed);
  // End the wait if this has not happened.
  peer.mailbox.close();
  stopping.join();
}

TEST_CASE("what comes without end is read in parts, in order") {
  Peer peer;
  std::atomic<bool> over = false;
  std::thread writing([&] {
    MailboxWriter writer(peer.name, peer.secret);
    for (std::size_t word = 0; !over;) {
      if (writer.write(std::to_string(word))) ++word;
    }
  });
  // During endless writes, a reader waiting for the last one may never finish.
  std::size_t read = 0;
  std::size_t longest = 0;
  for (const double began = now(); longest < Mailbox::kMostAtOnce && now() - began < 2;) {
    const std::vector<std::string> part = peer.mailbox.read();
    longest = std::max(longest, part.size());
    for (const std::string& word : part) REQUIRE(word == std::to_string(read++));
  }
  over = true;
  writing.join();
  CHECK(longest <= Mailbox::kMostAtOnce);
}

TEST_CASE("what was launched and cannot be watched may have landed: it is not refused") {
  Writing writing;
  Peer peer;
  const auto endpoint = peer.endpoint();
  imagined::eventless() = true;
  const auto posted = writing.writer->post(endpoint, {{{{0, 0, 16}}, "unseen"}});
  imagined::eventless() = false;
  CHECK(posted[0]->outcome == Outcome::kFailed);
  writing.writer->disconnect(*endpoint);
  CHECK(std::equal(peer.arena.begin(), peer.arena.begin() + 16, writing.source.begin()));
  CHECK(peer.mailbox.read().empty());
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
