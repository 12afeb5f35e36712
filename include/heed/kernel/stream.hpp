// Products of few rows with what a cache stores: bound by memory, and so written to keep it busy.
//
// Keys and values are read once, front to back, and asked for some lines ahead: by the time that a
// vector is used it has come.
#pragma once

#include "heed/kernel/half.hpp"
#include "heed/kernel/tile.hpp"

namespace heed::inline HEED_ABI::kernel {

// One vector of numbers that are stored as Stored.
template <class T, class Arch, class Stored>
HEED_INLINE vec<T, Arch> load_stored(const Stored* p) {
  if constexpr (std::is_same_v<T, Stored>) {
    return load_vec<Arch>(p);
  } else {
    static_assert(std::is_same_v<T, float> && half_type<Stored>,
                  "heed: a cache stores T itself or, of float, bfloat16 or float16");
    return load_widened<Arch>(p);
  }
}
// to[0, n) = from[0, n).
template <class T, class Stored>
void store_as(const T* from, Stored* to, index n) {
  if constexpr (half_type<Stored> && std::is_same_v<T, float>) {
    narrow(from, to, n);
  } else {
    for (index i = 0; i < n; ++i) to[i] = static_cast<Stored>(from[i]);
  }
}

// How many bytes ahead of those at hand is asked for, and in how many of them for one line: the
// hardware fetches the lines between. Asked for every line, it stops fetching ahead by itself.
inline constexpr index stream_ahead = 4096, stream_step = 256;

// Two places that are read at once, and what lies there: memory answers them side by side.
struct stream_pair {
  index far;  // elements of b from the first to the second
  index
      apart;  // columns of c, or with Add rows of b and columns of a, from the first to the second
};

// c[r][v] (+)= sum over k of a[r][k] b[k][v] for Rows rows and Vecs vectors of columns, and with
// Streams = 2 the same for a second place of b. Starts from `column_start`, from 0 where that is
// null, or with Add from what c holds, to which both places then add. Asks ahead if told so.
template <class Arch, int Rows, int Vecs, int Streams, bool Add, class T, class Stored>
HEED_NOINLINE void stream_tile(const T* a, index lda, const Stored* b, index ldb, T* c, index ldc,
                               index depth, const T* column_start, bool ask, stream_pair pair) {
  constexpr index w = width<T, Arch>;
  constexpr index step = stream_step / static_cast<index>(sizeof(Stored));
  constexpr index ahead = stream_ahead / static_cast<index>(sizeof(Stored));
  vec<T, Arch> sum[Streams][Rows][Vecs];
  const auto each = [&](auto&& f) HEED_INLINE_LAMBDA {
    unroll<Streams>([&](auto s) HEED_INLINE_LAMBDA {
      unroll<Rows>([&](auto r) HEED_INLINE_LAMBDA {
        unroll<Vecs>([&](auto v) HEED_INLINE_LAMBDA { f(s, r, v); });
      });
    });
  };
  each([&](auto s, auto r, auto v) HEED_INLINE_LAMBDA {
    if (!Add && column_start != nullptr) {
      sum[s][r][v] = load_vec<Arch>(column_start + s * pair.apart + v * w);
    } else {
      sum[s][r][v] = vec<T, Arch>(T(0));
    }
  });
  index asked = 0;
  for (index k = 0; k < depth; ++k, b += ldb, ++a) {
    for (; ask && asked < (k + 1) * ldb; asked += step) {
      unroll<Streams>([&](auto s) HEED_INLINE_LAMBDA {
        prefetch_far(b + s * pair.far + (asked - k * ldb) + ahead);
      });
    }
    unroll<Streams>([&](auto s) HEED_INLINE_LAMBDA {
      const Stored* row = b + s * pair.far;
      unroll<Vecs>([&](auto v) HEED_INLINE_LAMBDA {
        const vec<T, Arch> right = load_stored<T, Arch>(row + v * w);
        unroll<Rows>([&](auto r) HEED_INLINE_LAMBDA {
          const vec<T, Arch> left(a[r * lda + (Add ? s * pair.apart : 0)]);
          sum[s][r][v] = multiply_add(left, right, sum[s][r][v]);
        });
      });
    });
  }
  each([&](auto s, auto r, auto v) HEED_INLINE_LAMBDA {
    T* to = c + r * ldc + v * w + (Add ? 0 : s * pair.apart);
    store_vec<Arch>(to, Add ? load_vec<Arch>(to) + sum[s][r][v] : sum[s][r][v]);
  });
}

// C[rows x cols] = start + A[rows x depth] B[depth x cols], or C += A B, for few rows; as product()
// in what it reads and writes beyond `cols`. Rows of B lie `ldb` apart, all of which is read. With
// Streams = 2 also for what stands pair.far and pair.apart further on.
template <class Arch, int Streams, bool Add, class T, class Stored>
void stream_product(const T* a, index lda, const Stored* b, index ldb, T* c, index ldc, index rows,
                    index cols, index depth, const T* column_start, stream_pair pair = {0, 0}) {
  constexpr index w = width<T, Arch>;
  constexpr int most = vectors_per_tile<Arch>;
  bool ask = true;
  const auto columns = [&](auto height) {
    constexpr int r = decltype(height)::value;
    index at = 0;
    const auto strip = [&](auto count) {
      stream_tile<Arch, r, decltype(count)::value, Streams, Add>(
          a, lda, b + at, ldb, c + at, ldc, depth,
          column_start == nullptr ? nullptr : column_start + at, ask, pair);
      at += decltype(count)::value * w;
      ask = false;  // all of B has been asked for
    };
    while (cols - at > (most - 1) * w) strip(std::integral_constant<int, most>{});
    while (cols > at) strip(std::integral_constant<int, 1>{});
    a += r * lda;
    c += r * ldc;
    rows -= r;
  };
  if constexpr (Streams == 1) {
    while (rows >= 4) columns(std::integral_constant<int, 4>{});
  }
  while (rows >= 2) columns(std::integral_constant<int, 2>{});
  if (rows == 1) columns(std::integral_constant<int, 1>{});
}

}  // namespace heed::inline HEED_ABI::kernel
