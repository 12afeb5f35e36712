// What a mechanism offers the sweep, and the checks that say in a sentence what is wrong with one.
//
// A mechanism is a value. The sweep sees it at three levels, each with its own hooks:
//
//   stage   the value itself                                    check, geometry, active, plan
//   plan    what plan(context) returns, one per call and        queries, keys, rows, denominator,
//           sequence; without the hook the stage is its plan    output
//   rows    what rows(context) returns, one per row block and   enter, forward, advance,
//           panel of heads; without the hook the plan serves    column_bias, row_bias, ceiling
//
// A stage names its place in the pipeline, `static constexpr heed::place where`, and lists its
// hooks, `static constexpr heed::hook hooks = heed::hook::forward | ...`. A hook that is listed but
// missing, or present but not listed, does not compile: so a misspelt hook cannot go unnoticed.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>

#include "heed/problem.hpp"

namespace heed::inline HEED_ABI {

// Where in the pipeline a stage acts. Stages sort stably into places; within one the caller's order
// holds.
enum class place {
  inputs,  // queries and keys before they meet
  scores,  // how a query meets a key (in place of the plain dot product; at most one)
  logits,  // natural-log logits, already scaled, before softmax
  probs,   // probabilities after softmax
  output,  // finished rows of the output
};

enum class hook : std::uint64_t {
  none = 0,
  check = 1U << 0,         // stage: check(problem, mask): throws where the parameters do not fit
  geometry = 1U << 1,      // stage: geometry() -> heed::geometry
  active = 1U << 2,        // stage: active() -> bool; false: as if it were not in the list
  plan = 1U << 3,          // stage: plan(plan_context) -> Plan, trivially destructible
  queries = 1U << 4,       // plan: queries(head, row_begin, row_end, T* rows, ld), in place
  keys = 1U << 5,          // plan: keys(kv_head, key_begin, key_end, T* rows, ld), in place
  rows = 1U << 6,          // plan: rows(rows_context) -> Rows, trivially destructible
  denominator = 1U << 7,   // plan: denominator(head) -> T, a logit in the softmax's sum only
  output = 1U << 8,        // plan: output(head, row, T* line, workspace&), a finished row; below
  enter = 1U << 9,         // rows: enter(key_begin, key_end), once before a panel's forward calls
  forward = 1U << 10,      // rows: forward(panel), once per panel and strip of rows
  advance = 1U << 11,      // rows: advance(key_begin, key_end): the sweep leaves these columns
  column_bias = 1U << 12,  // rows: column_bias(g, key_begin, key_end, T* sum) adds; see below
  row_bias = 1U << 13,     // rows: row_bias(g, row) -> T, what column_bias leaves out in a row
  ceiling = 1U << 14,      // rows: ceiling(g, key_begin, key_end, bounds), see below
  prunes = 1U << 15,       // stage: prunes() -> pruning: what may be left out; tolerance 0: nothing

  // What attend_grad asks for: kernel/reverse.hpp.
  gradients = 1U << 16,     // stage: gradients(gradient_type, f): f(name, view, tensor) for each
  sums = 1U << 17,          // stage: sums(gradient_type, owner_context) -> Sums
  queries_grad = 1U << 18,  // plan: the adjoint of queries
  keys_grad = 1U << 19,     // plan: the adjoint of keys
  denominator_grad = 1U << 20,  // plan: denominator_grad(head, sum, sums)
  output_grad = 1U << 21,       // plan: output_grad(head, row, line, gradient, sums, workspace&)
  carries = 1U << 22,           // rows: carries(visit): what moves from panel to panel
  begin_backward = 1U << 23,    // rows: begin_backward(reverse_context, sums)
  backward = 1U << 24,          // rows: backward(reverse_panel), the adjoint of forward
  retreat = 1U << 25,           // rows: retreat(key_begin, key_end), the reverse of advance
  end_backward = 1U << 26,      // rows: end_backward(dq): adds to the gradient of the caller's q
  // Not members, but statements about forward and backward:
  adds = 1U << 27,             // what forward adds does not depend on the logits
  forward_carries = 1U << 28,  // forward changes what carries shows
  keeps_input = 1U << 29,      // backward reads what forward was given,
  keeps_output = 1U << 30,     // or what it put out

  constant_from_here = 1U << 31,    // rows: constant_from_here(g, row, T& sum) -> bool; see below
  tokens = std::uint64_t{1} << 32,  // stage: tokens(stage, problem, f), static; see below
  keep = std::uint64_t{1} << 33,  // stage: keep(keep_context), with kept_bytes and kept; see below
};
constexpr hook operator|(hook a, hook b) noexcept {
  return static_cast<hook>(static_cast<std::uint64_t>(a) | static_cast<std::uint64_t>(b));
}
constexpr bool lists(hook all, hook one) noexcept {
  return (static_cast<std::uint64_t>(all) & static_cast<std::uint64_t>(one)) != 0;
}

// column_bias is the fast form of forward for a stage that adds a number which splits into one per
// column and one per row: column_bias + row_bias. The sweep uses it when every active stage of
// place logits has it and mergeable() (optional member, default true) holds for each: the sums
// then start the accumulators of q.k, and forward is not called.
//
// ceiling(g, key_begin, key_end, std::span<double> bounds): bounds[r], for every row r of the
// block, is at least every logit of keys [key_begin, key_end) that reaches the stage in that row;
// it becomes at least every logit that leaves it, in exact arithmetic. Asked when the columns from
// key_end on have been left (advance). Where a stage prunes, every stage of place logits with
// forward must have it, and none may read beside its element.

// tokens(stage, problem, f) calls f(name, view, extents) for every tensor of the stage that has an
// entry for each token, [B, S, extents...]: what a cache keeps (cache.hpp). `stage` may be const.
// keep(keep_context) works out of them, or of the values, what plan would else have to work out for
// all tokens in every step: a cache has kept_bytes(problem) for every 64 tokens, which it hands to
// plan and keep in the stage's member `kept`, std::byte* and null elsewhere.

// constant_from_here(g, row, T& sum): whether forward would add the same number to every older
// logit of the row from here on, and change no carry, and adds that number to sum. Where it holds
// for every stage of place logits that has forward, and for all rows that go down the pipeline
// together, the sweep moves the softmax's state of these rows instead, once, and calls forward for
// them no more.

// What of a row may be left out by the sweep: keys, oldest first, whose weight is negligible.
struct pruning {
  // At most this much of the exact probabilities of a row is left out; in [0, 1). The default is
  // e^-10.
  double tolerance = 4.5399929762484854e-05;
  // A bound on every |scale q.k|, or whatever a mechanism of place scores puts in its place; 0:
  // from the norms of q and k.
  double logit_bound = 0;
};

// output(head, row, line, scratch): `line` holds the Dv values of one row, with room up to a
// multiple of a SIMD width; scratch is to be rewound (workspace::scope).

// What a stage reads around an element (i, j).
struct geometry {
  index rows_above = 0;   // rows i - rows_above .. i of the same sequence and call
  index older_cols = 0;   // keys j - older_cols ..
  index newer_cols = 0;   // .. j + newer_cols
  index heads_mixed = 1;  // heads in groups of this many, starting at a multiple of it
  // What invisible entries must read as when the stage begins; else they are unspecified.
  enum class invisible { unspecified, zero, minus_infinity } reads = invisible::unspecified;
};

}  // namespace heed::inline HEED_ABI
