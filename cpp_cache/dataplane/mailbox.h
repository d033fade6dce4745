// Notifications between processes of one host: datagrams on a Unix socket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace tasuki::dataplane {

// Error of a writer: no process reads at the other end.
class MailboxGone : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The reading end. Owns the socket. Knows no layer chunks and no peers' lives. One thread at a
// time; nothing blocks. Invariants: a datagram without the mailbox's secret is dropped, because any
// process of the host can see its name. Datagrams of one writer arrive in order, each once.
class Mailbox {
 public:
  // name: in no file system, so a killed process leaves nothing behind. Throws std::system_error.
  Mailbox(std::string_view name, std::string secret);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  static constexpr std::size_t kMostAtOnce = 64;

  // Descriptor, readable once a datagram has arrived; -1 once closed.
  int descriptor() const { return socket_; }

  // Return the datagrams since the last call, at most kMostAtOnce, so an endless writer does not
  // hold its reader. The next call returns the rest.
  std::vector<std::string> read();
  std::uint64_t dropped() const { return dropped_; }

  // Close the reading end; writers notice it with their next datagram. Idempotent.
  void close();

 private:
  std::string secret_;
  std::vector<char> datagram_;
  std::uint64_t dropped_ = 0;
  int socket_;
};

class MailboxWriter {
 public:
  // Throws MailboxGone if no process reads there.
  MailboxWriter(std::string_view name, std::string secret);
  ~MailboxWriter();
  MailboxWriter(const MailboxWriter&) = delete;
  MailboxWriter& operator=(const MailboxWriter&) = delete;

  // Return false if the reader has to read first. Throws MailboxGone.
  bool write(std::string_view notification);

  // Idempotent.
  void close();

 private:
  std::string secret_;
  int socket_;
};

}  // namespace tasuki::dataplane
