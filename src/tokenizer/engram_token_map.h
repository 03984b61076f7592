#pragma once

#include <string>
#include <string_view>

namespace deepinfer {

/// Steps 3 of spec/backbone §5.1 on valid UTF-8: NFKC, NFD, no marks, lower case, blanks squeezed and stripped. Empty if nothing
/// is left (the key then is the text itself).
std::string engram_normalise(std::string_view text);

}  // namespace deepinfer
