// Decoding with one number per pair of tokens, and with RoPE.
#include "decode_call.hpp"

namespace attend_program {

ATTEND_DECODE(float, const heed::rope&, const heed::alibi&, const heed::relative<float>&,
              const heed::fox<float>&)
ATTEND_DECODE(double, const heed::rope&, const heed::alibi&, const heed::relative<double>&,
              const heed::fox<double>&)

}  // namespace attend_program
