// Decoding with MTA.
#include "decode_call.hpp"
#include "heed/mechanisms/mta.hpp"

namespace attend_program {

ATTEND_DECODE(float, const heed::rope&, const heed::conv<float>&, const heed::head_mix<float>&,
              const heed::after<heed::conv<float>>&, const heed::after<heed::group_mix<float>>&,
              const heed::after<heed::head_mix<float>>&, const heed::head_norm<float>&,
              const heed::head_gate<float>&)
ATTEND_DECODE(double, const heed::rope&, const heed::conv<double>&, const heed::head_mix<double>&,
              const heed::after<heed::conv<double>>&, const heed::after<heed::group_mix<double>>&,
              const heed::after<heed::head_mix<double>>&, const heed::head_norm<double>&,
              const heed::head_gate<double>&)

}  // namespace attend_program
