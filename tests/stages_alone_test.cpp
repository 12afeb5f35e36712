// The driver's contract, part by part: lists of one small stage, or of two.
#include "stage_lists.hpp"

namespace heed_test {

TEST_CASE("A stage that shifts by rows and columns") {
  check_list<double>(1, from_above<logits>{1, 1});
  check_list<double>(1, from_above<probs>{4, 2});
}

TEST_CASE("A stage that averages over neighbours, with panels narrower than its reach") {
  check_list<double>(1, average<logits>{1, 1});
  check_list<double>(1, average<probs>{0, 5});
  check_list<double>(1, average<logits>{6, 4}, average<probs>{2, 3});
}

TEST_CASE("Stages that mix heads: groups of 2 and 3 share panels of 6") {
  check_list<double>(2, rotate_heads<logits, 2>{});
  check_list<double>(6, rotate_heads<logits, 2>{}, rotate_heads<probs, 3>{});
}

TEST_CASE("A stage that counts along the sweep, before and after softmax") {
  check_list<double>(1, count_positive<logits>{});
  check_list<double>(1, count_positive<probs>{});
}

TEST_CASE("An inactive stage is as if it were not listed") {
  check_list<double>(1, average<logits>{1, 1}, absent{});
}

TEST_CASE("The driver announces, passes and leaves columns in order") {
  int faults = 0, panels = 0;
  check_list<double>(1, witness<logits>{&faults, &panels});
  CHECK(faults == 0);
  CHECK(panels > 1000);
}

}  // namespace heed_test
