#pragma once

#include <string>
#include <string_view>

namespace deepinfer::testing {

/// The first thing that keeps `text` from being a well-formed XML document (the part of XML that this project writes: elements,
/// attributes in double quotes, character data, the five entities), empty if there is none. A doctype of HTML may come first.
std::string xml_defect(std::string_view text);

}  // namespace deepinfer::testing
