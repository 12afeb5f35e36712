// All of heed that needs nothing but xsimd. Views of Eigen matrices, the layers and the file
// formats have headers of their own: heed/eigen.hpp, heed/multi_head.hpp, heed/layers/, heed/io/.
#pragma once

#include "heed/attend.hpp"
#include "heed/attend_grad.hpp"
#include "heed/config.hpp"
#include "heed/half.hpp"
#include "heed/mask.hpp"
#include "heed/mechanisms/alibi.hpp"
#include "heed/mechanisms/bias.hpp"
#include "heed/mechanisms/cope.hpp"
#include "heed/mechanisms/fox.hpp"
#include "heed/mechanisms/mta.hpp"
#include "heed/mechanisms/path.hpp"
#include "heed/mechanisms/relative.hpp"
#include "heed/mechanisms/rope.hpp"
#include "heed/mechanisms/sinks.hpp"
#include "heed/mechanisms/softcap.hpp"
#include "heed/options.hpp"
#include "heed/parallel.hpp"
#include "heed/tensor.hpp"
#include "heed/workspace.hpp"
