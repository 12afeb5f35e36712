// The driver's contract: many parts of it at once, for every instruction set.
#include "stage_lists.hpp"

namespace heed_test {

TEST_CASE("Stages that shift on both sides of softmax, in float") {
  check_list<float>(1, from_above<logits>{2, 5}, from_above<probs>{1, 1});
}

TEST_CASE("Lags, halos and carries of several stages add up") {
  check_list<double>(1, from_above<logits>{1, 1}, count_positive<logits>{}, average<logits>{2, 1},
                     count_positive<logits>{}, from_above<probs>{2, 0}, count_positive<probs>{},
                     average<probs>{1, 2});
  check_list<double>(2, heed::alibi{}, average<logits>{3, 0}, rotate_heads<logits, 2>{},
                     from_above<logits>{2, 1}, rotate_heads<probs, 2>{}, from_above<probs>{0, 3});
}

TEST_CASE("The driver announces, passes and leaves columns in order, whatever lags before") {
  int faults = 0, panels = 0;
  check_list<double>(1, witness<logits>{&faults, &panels}, average<logits>{3, 1},
                     witness<logits>{&faults, &panels}, from_above<probs>{1, 2},
                     witness<probs>{&faults, &panels});
  CHECK(faults == 0);
  CHECK(panels > 10000);
}

}  // namespace heed_test
