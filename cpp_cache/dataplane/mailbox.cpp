#include "dataplane/mailbox.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace tasuki::dataplane {

namespace {

constexpr std::size_t kLongest = 1 << 16;

struct Abstract {
  sockaddr_un address{};
  socklen_t length = 0;

  explicit Abstract(std::string_view name) {
    address.sun_family = AF_UNIX;
    // The first byte of an abstract name is 0.
    const std::size_t kept = std::min(name.size(), sizeof address.sun_path - 1);
    std::memcpy(address.sun_path + 1, name.data(), kept);
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + kept);
  }
  const sockaddr* pointer() const { return reinterpret_cast<const sockaddr*>(&address); }
};

int datagram_socket() {
  const int made = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (made < 0) throw std::system_error(errno, std::generic_category(), "no socket could be made");
  return made;
}

void close_once(int& descriptor) {
  if (descriptor >= 0) ::close(descriptor);
  descriptor = -1;
}

std::string why() { return std::generic_category().message(errno); }

// Takes the same time for every place of a difference.
bool equal(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned char differs = 0;
  for (std::size_t index = 0; index < a.size(); ++index) {
    differs |= static_cast<unsigned char>(a[index] ^ b[index]);
  }
  return differs == 0;
}

}  // namespace

Mailbox::Mailbox(std::string_view name, std::string secret)
    : secret_(std::move(secret)), datagram_(kLongest), socket_(datagram_socket()) {
  const Abstract own(name);
  if (bind(socket_, own.pointer(), own.length) != 0) {
    const int code = errno;
    close_once(socket_);
    throw std::system_error(code, std::generic_category(), "the mailbox could not be opened");
  }
}

Mailbox::~Mailbox() { close(); }

std::vector<std::string> Mailbox::read() {
  std::vector<std::string> arrived;
  for (std::size_t taken = 0; socket_ >= 0 && taken < kMostAtOnce; ++taken) {
    const ssize_t length = recv(socket_, datagram_.data(), datagram_.size(), 0);
    if (length < 0) {
      if (errno == EINTR) continue;
      break;
    }
    const std::string_view datagram(datagram_.data(), static_cast<std::size_t>(length));
    if (equal(datagram.substr(0, secret_.size()), secret_)) {
      arrived.emplace_back(datagram.substr(secret_.size()));
    } else {
      ++dropped_;
    }
  }
  return arrived;
}

void Mailbox::close() { close_once(socket_); }

MailboxWriter::MailboxWriter(std::string_view name, std::string secret)
    : secret_(std::move(secret)), socket_(datagram_socket()) {
  const Abstract there(name);
  if (connect(socket_, there.pointer(), there.length) != 0) {
    const std::string reason = why();
    close_once(socket_);
    throw MailboxGone("the peer's mailbox cannot be reached: " + reason);
  }
}

MailboxWriter::~MailboxWriter() { close(); }

bool MailboxWriter::write(std::string_view notification) {
  if (socket_ < 0) throw MailboxGone("the peer's mailbox is gone: it was closed here");
  std::string datagram = secret_;
  datagram.append(notification);
  while (send(socket_, datagram.data(), datagram.size(), MSG_NOSIGNAL) < 0) {
    if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
    if (errno == EINTR) continue;
    throw MailboxGone("the peer's mailbox is gone: " + why());
  }
  return true;
}

void MailboxWriter::close() { close_once(socket_); }

}  // namespace tasuki::dataplane
