#pragma once

#include "grammar/regex.h"

namespace deepinfer::grammar {

/// The same language without `^` and `$`, as an expression for the whole text.
Result<Regex> resolve_anchors(const Regex& regex, RegexScope scope);

}  // namespace deepinfer::grammar
