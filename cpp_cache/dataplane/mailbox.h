// Notifications between processes of one host: datagrams on a Unix socket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tasuki::dataplane {

// The other end is not there.
class MailboxGone : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The reading end. Owns the socket. Knows no windows and no peers' lives. One thread at a time;
// nothing blocks.
// Invariants: what does not bear the mailbox's secret is dropped, since any process of the host can
// see its name; datagrams of one writer arrive in order, each once.
class Mailbox {
 public:
  // name: in no file system, so that nothing is left behind by a process that was killed.
  // Throws std::system_error.
  Mailbox(std::string_view name, std::string secret);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  static constexpr std::size_t kMostAtOnce = 64;

  // Readable while something has come; -1 once closed.
  int descriptor() const { return socket_; }

  // What has come since the last call; the rest of it with the next one where that is more than
  // kMostAtOnce, so that none who writes without end holds its reader.
  std::vector<std::string> read();
  std::uint64_t dropped() const { return dropped_; }

  // Idempotent; writers see it with their next word.
  void close();

 private:
  std::string secret_;
  std::vector<char> datagram_;
  std::uint64_t dropped_ = 0;
  int socket_;
};

class MailboxWriter {
 public:
  // Throws MailboxGone where nobody reads there.
  MailboxWriter(std::string_view name, std::string secret);
  ~MailboxWriter();
  MailboxWriter(const MailboxWriter&) = delete;
  MailboxWriter& operator=(const MailboxWriter&) = delete;

  // False where the reader has to read first. Throws MailboxGone.
  bool write(std::string_view notification);

  // Idempotent.
  void close();

 private:
  std::string secret_;
  int socket_;
};

}  // namespace tasuki::dataplane
