#include "dataplane/gpu_digester.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace tasuki::dataplane {

namespace {

constexpr std::size_t kFirstRows = 1 << 14;
// Lines of a table: offsets, lengths, seeds, windows, digests.
constexpr std::size_t kLines = 5;

}  // namespace

GpuDigester::Tables::Tables(const CudaDriver& driver, std::size_t most, unsigned parts)
    : capacity(most),
      host(driver, kLines * most),
      device(driver, kLines * most),
      partial(driver, parts * most) {}

GpuDigester::GpuDigester(std::shared_ptr<const CudaContext> context, const DigestKernels& kernels,
                         Address words, Address keys, digest::WindowGeometry geometry)
    : context_(std::move(context)),
      kernels_(kernels),
      words_(words),
      keys_(keys),
      geometry_(std::move(geometry)) {
  const CudaContext::Current current(*context_);
  stream_ = std::make_unique<Stream>(context_->driver());
  event_ = std::make_unique<Event>(context_->driver());
  tables_ = std::make_unique<Tables>(context_->driver(), kFirstRows, kernels_.parts);
}

GpuDigester::~GpuDigester() {
  try {
    const CudaContext::Current current(*context_);
    tables_.reset();
    event_.reset();
    stream_.reset();
  } catch (const CudaError&) {
    // A failed context has freed them.
  }
}

std::vector<std::uint64_t> GpuDigester::digest(std::span<const digest::WindowPlaces> windows) {
  digest::RowTable table;
  std::vector<std::int64_t> numbers;
  for (std::size_t number = 0; number < windows.size(); ++number) {
    geometry_.add_rows(windows[number], table);
    numbers.resize(table.offsets.size(), static_cast<std::int64_t>(number));
  }
  return digest({table.offsets, table.lengths, table.seeds}, numbers, windows.size());
}

std::uint64_t GpuDigester::digest(const digest::Rows& rows) {
  const std::vector<std::int64_t> numbers(rows.offsets.size(), 0);
  return digest(rows, numbers, 1).front();
}

std::vector<std::uint64_t> GpuDigester::digest(const digest::Rows& rows,
                                               std::span<const std::int64_t> numbers,
                                               std::size_t windows) {
  const std::size_t count = rows.offsets.size();
  std::vector<std::uint64_t> digests(windows, 0);
  if (count == 0) return digests;
  // Even, because the kernels are compiled for lines beginning at 16 bytes.
  std::size_t columns = std::max(count, windows);
  columns += columns % 2;
  const std::scoped_lock lock(mutex_);
  const CudaContext::Current current(*context_);
  const CudaDriver& driver = context_->driver();
  if (columns > tables_->capacity) {
    tables_ = std::make_unique<Tables>(driver, std::bit_ceil(columns), kernels_.parts);
  }
  std::int64_t* line = tables_->host.words().data();
  for (const auto& column : {rows.offsets, rows.lengths, rows.seeds, numbers}) {
    std::fill(std::copy(column.begin(), column.end(), line), line + columns, 0);
    line += columns;
  }
  std::fill(line, line + columns, 0);
  const StreamHandle stream = stream_->handle();
  const Address there = tables_->device.address();
  const auto address_of = [&](std::size_t number) {
    return there + number * columns * sizeof(std::int64_t);
  };
  driver.require(driver.copy_to_device(there, tables_->host.words().data(),
                                       kLines * columns * sizeof(std::int64_t), stream),
                 "cuMemcpyHtoDAsync");
  const Address partial = tables_->partial.address();
  const auto programs = static_cast<unsigned>(count);
  kernels_.sum.launch(driver, programs, kernels_.parts, stream, words_, keys_, address_of(0),
                      address_of(1), partial);
  kernels_.mix.launch(driver, programs, 1, stream, partial, address_of(2), address_of(3),
                      address_of(4));
  driver.require(driver.copy_to_host(line, address_of(4), windows * sizeof(std::int64_t), stream),
                 "cuMemcpyDtoHAsync");
  event_->record(stream);
  event_->wait();
  std::ranges::transform(std::span(line, windows), digests.begin(),
                         [](std::int64_t bits) { return std::bit_cast<std::uint64_t>(bits); });
  return digests;
}

}  // namespace tasuki::dataplane
