#include "compiled.hpp"

HEED_TEST_REFERENCE()
