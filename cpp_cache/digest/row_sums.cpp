// The instruction sets are chosen when the process runs, not by the linker (target_clones): an
// ifunc is resolved before a sanitizer's runtime is ready.
#include "digest/row_sums.h"

#include <cstring>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define TASUKI_DIGEST_X86 1
#include <immintrin.h>
#endif

namespace tasuki::digest {

namespace {

// Every kernel sums `Rows` rows with `Rows * Chains` accumulators. An accumulator waits for its
// last sum, so more of them keep more multiplications in flight.
template <std::size_t Rows>
using Starts = std::array<const std::byte*, Rows>;
template <std::size_t Rows>
using Sums = std::array<std::uint64_t, Rows>;

// Words [first, count) of each row, added to `sums`.
template <std::size_t Rows>
inline void add_words(Sums<Rows>& sums, const Starts<Rows>& rows, const std::uint64_t* keys,
                      std::size_t first, std::size_t count) {
  for (std::size_t index = first; index < count; ++index) {
    for (std::size_t row = 0; row < Rows; ++row) {
      std::uint64_t word;
      std::memcpy(&word, rows[row] + 8 * index, sizeof word);
      sums[row] += word * keys[index];
    }
  }
}

template <std::size_t Rows>
Sums<Rows> scalar_sums(const Starts<Rows>& rows, const std::uint64_t* keys, std::size_t count) {
  Sums<Rows> sums{};
  add_words<Rows>(sums, rows, keys, 0, count);
  return sums;
}

#ifdef TASUKI_DIGEST_X86

template <std::size_t Rows, std::size_t Chains>
__attribute__((target("avx512f,avx512dq"))) Sums<Rows> avx512_sums(const Starts<Rows>& rows,
                                                                   const std::uint64_t* keys,
                                                                   std::size_t count) {
  constexpr std::size_t kLanes = 8;
  __m512i chains[Rows][Chains];
  for (auto& row : chains) {
    for (auto& chain : row) chain = _mm512_setzero_si512();
  }
  std::size_t index = 0;
  for (; index + kLanes * Chains <= count; index += kLanes * Chains) {
    for (std::size_t chain = 0; chain < Chains; ++chain) {
      const std::size_t at = index + kLanes * chain;
      const __m512i key = _mm512_loadu_si512(keys + at);
      for (std::size_t row = 0; row < Rows; ++row) {
        const __m512i words = _mm512_loadu_si512(rows[row] + 8 * at);
        chains[row][chain] = _mm512_add_epi64(chains[row][chain], _mm512_mullo_epi64(words, key));
      }
    }
  }
  Sums<Rows> sums{};
  for (std::size_t row = 0; row < Rows; ++row) {
    for (const __m512i& chain : chains[row]) {
      std::uint64_t lanes[kLanes];
      _mm512_storeu_si512(lanes, chain);
      for (const std::uint64_t lane : lanes) sums[row] += lane;
    }
  }
  add_words<Rows>(sums, rows, keys, index, count);
  return sums;
}

// AVX2 multiplies 32 bits by 32: low * low, and 2^32 times both products of a low and a high half.
template <std::size_t Rows, std::size_t Chains>
__attribute__((target("avx2"))) Sums<Rows> avx2_sums(const Starts<Rows>& rows,
                                                     const std::uint64_t* keys, std::size_t count) {
  constexpr std::size_t kLanes = 4;
  __m256i low[Rows][Chains];
  __m256i high[Rows][Chains];
  for (std::size_t row = 0; row < Rows; ++row) {
    for (std::size_t chain = 0; chain < Chains; ++chain) {
      low[row][chain] = high[row][chain] = _mm256_setzero_si256();
    }
  }
  std::size_t index = 0;
  for (; index + kLanes * Chains <= count; index += kLanes * Chains) {
    for (std::size_t chain = 0; chain < Chains; ++chain) {
      const std::size_t at = index + kLanes * chain;
      const __m256i key = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(keys + at));
      const __m256i key_high = _mm256_srli_epi64(key, 32);
      for (std::size_t row = 0; row < Rows; ++row) {
        const __m256i words =
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[row] + 8 * at));
        const __m256i crossed = _mm256_add_epi64(
            _mm256_mul_epu32(_mm256_srli_epi64(words, 32), key), _mm256_mul_epu32(words, key_high));
        low[row][chain] = _mm256_add_epi64(low[row][chain], _mm256_mul_epu32(words, key));
        high[row][chain] = _mm256_add_epi64(high[row][chain], crossed);
      }
    }
  }
  Sums<Rows> sums{};
  for (std::size_t row = 0; row < Rows; ++row) {
    for (std::size_t chain = 0; chain < Chains; ++chain) {
      const __m256i both =
          _mm256_add_epi64(low[row][chain], _mm256_slli_epi64(high[row][chain], 32));
      std::uint64_t lanes[kLanes];
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), both);
      for (const std::uint64_t lane : lanes) sums[row] += lane;
    }
  }
  add_words<Rows>(sums, rows, keys, index, count);
  return sums;
}

#endif

using SumsOfOne = Sums<1>(const Starts<1>& row, const std::uint64_t* keys, std::size_t count);

template <SumsOfOne* Kernel>
std::uint64_t sum_alone(const std::byte* row, const std::uint64_t* keys, std::size_t count) {
  return Kernel({row}, keys, count)[0];
}

constexpr std::array kNone = {Instructions::kScalar};
#ifdef TASUKI_DIGEST_X86
constexpr std::array kSomeOfX86 = {Instructions::kScalar, Instructions::kAvx2};
constexpr std::array kAllOfX86 = {Instructions::kScalar, Instructions::kAvx2,
                                  Instructions::kAvx512};
#endif

}  // namespace

std::span<const Instructions> runnable() {
#ifdef TASUKI_DIGEST_X86
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) return kAllOfX86;
  if (__builtin_cpu_supports("avx2")) return kSomeOfX86;
#endif
  return kNone;
}

std::string_view name_of(Instructions instructions) {
  switch (instructions) {
    case Instructions::kScalar:
      return "scalar";
    case Instructions::kAvx2:
      return "avx2";
    case Instructions::kAvx512:
      break;
  }
  return "avx512";
}

SumFunctions sums_by([[maybe_unused]] Instructions instructions) {
#ifdef TASUKI_DIGEST_X86
  if (instructions == Instructions::kAvx512) {
    return {&avx512_sums<kRowsTogether, 2>, &sum_alone<&avx512_sums<1, 8>>};
  }
  if (instructions == Instructions::kAvx2) {
    return {&avx2_sums<kRowsTogether, 1>, &sum_alone<&avx2_sums<1, 4>>};
  }
#endif
  return {&scalar_sums<kRowsTogether>, &sum_alone<&scalar_sums<1>>};
}

}  // namespace tasuki::digest
