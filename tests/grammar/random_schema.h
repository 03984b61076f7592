#pragma once

#include <nlohmann/json.hpp>

#include "testing/random.h"

namespace deepinfer::testing {

/// A random schema of the kind people write, of at most `depth` levels.
nlohmann::ordered_json random_schema(Random& random, int depth);

}  // namespace deepinfer::testing
