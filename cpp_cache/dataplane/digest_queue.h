// Queue of digests of layer chunks sent from a GPU's arena, beside their transfers: all waiting
// ones in one call.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "dataplane/gpu_digester.h"
#include "steps/bell.h"

namespace tasuki::dataplane {

// Digest of a layer chunk, now or later. The caller reads value and why once it is done. why: the
// reason of a failure.
struct AskedDigest {
  digest::WindowPlaces places;
  std::vector<std::int64_t> pages;
  std::atomic<bool> done = false;
  std::uint64_t value = 0;
  std::optional<std::string> why;

  AskedDigest(const digest::WindowPlaces& window, std::vector<std::int64_t> page_ids)
      : places(window), pages(std::move(page_ids)) {
    places.pages = pages;
  }
  AskedDigest(const AskedDigest&) = delete;
  AskedDigest& operator=(const AskedDigest&) = delete;
};

// Owns a thread and its requests. Knows no rooms and no peers. Any thread asks. Invariants: each
// request is answered, also by the end of the queue. A layer chunk without a digest fails alone.
class DigestQueue {
 public:
  explicit DigestQueue(std::shared_ptr<GpuDigester> digester);
  ~DigestQueue();
  DigestQueue(const DigestQueue&) = delete;
  DigestQueue& operator=(const DigestQueue&) = delete;

  // Ring this bell too from now on, whenever requests are answered.
  void ring_at_answers(std::shared_ptr<const Bell> bell);

  // Request a digest. The chunk's bytes must stay unchanged until it is done.
  void ask(std::shared_ptr<AskedDigest> asked);

 private:
  void run();
  void answer(std::vector<std::shared_ptr<AskedDigest>>& batch);

  std::shared_ptr<GpuDigester> digester_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<AskedDigest>> asked_;
  std::vector<std::shared_ptr<const Bell>> bells_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tasuki::dataplane
