// attend_grad against the gradients of the published code, for the plain mechanisms.
#include "gradient_golden.hpp"

using heed_test::check_golden_gradients;
using heed_test::golden_gradient_call;

TEST_CASE("Golden gradients of plain softmax") {
  check_golden_gradients("softmax_", [](auto&) { return std::tuple<>(); });
}
TEST_CASE("Golden gradients of RoPE") {
  check_golden_gradients("rope_", [](auto& call) { return std::tuple(call.rope()); });
}
TEST_CASE("Golden gradients of ALiBi") {
  check_golden_gradients("alibi_", [](auto&) { return std::tuple(heed::alibi{}); });
}
TEST_CASE("Golden gradients of relative positions") {
  check_golden_gradients("rel_", [](auto& call) {
    const auto e = call.template tensor<2>("rel_emb");
    return std::tuple(heed::with_grad(
        heed::relative<typename std::remove_reference_t<decltype(call)>::value_type>{
            e, call.from.flag("rel_extend")},
        {call.template gradient<2>("rel_emb")}));
  });
}
