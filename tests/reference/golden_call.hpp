// A golden case as a call of the reference: its tensors, options and list of mechanisms.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "golden.hpp"
#include "heed/reference/attend.hpp"

namespace heed_test {

// Keeps what its views point to; not copied, since the mechanisms look into it.
class golden_call {
 public:
  explicit golden_call(const golden_case& from) : golden_call(from, std::nullopt) {}
  // Rows [begin, end) as the queries, and only the keys that were there at `end`: a prefill, or
  // a step of decoding. Tensors that are indexed by key are cut, too.
  golden_call(const golden_case& from, std::optional<std::array<heed::index, 2>> rows);
  golden_call(const golden_call&) = delete;
  golden_call& operator=(const golden_call&) = delete;

  // The reference's output for q, k, v and the list.
  std::vector<double> run();

  // Largest error of `run` over the largest expected value of the whole case.
  double error();

  heed::attend_options<double> options;
  heed::reference::steps<double> list;

 private:
  template <int Rank>
  heed::tensor_view<const double, Rank> tensor(const std::string& name) {
    auto found = arrays_.find(name);
    if (found == arrays_.end()) {
      found = arrays_.emplace(name, case_.tensor<double>(name)).first;
    }
    return found->second.template view<double, Rank>();
  }
  template <int Rank>
  heed::tensor_view<const double, Rank> keyed(const std::string& name) {
    const auto whole = tensor<Rank>(name);
    return rows_ ? whole.slice(1, 0, (*rows_)[1]) : whole;
  }

  void add_mechanisms();
  void add_cope();
  void add_mta();

  golden_case case_;
  std::optional<std::array<heed::index, 2>> rows_;
  std::map<std::string, heed::io::npy_array> arrays_;
};

// Every golden case of a kind, whole; those with a decode length also in prefill and steps. MTA
// needs its earlier queries again, which a call with fewer rows does not have.
void check_golden(const std::string& prefix);

}  // namespace heed_test
