#pragma once

#include <string>
#include <string_view>

namespace deepinfer::bench {

/// A page that loads nothing, in the reader's light or dark setting: `title`, as text, over `body`, which is XHTML. A table in an
/// element of class "wide" scrolls by itself; a cell of class "text" stands left.
std::string html_page(std::string_view title, std::string_view body);

}  // namespace deepinfer::bench
