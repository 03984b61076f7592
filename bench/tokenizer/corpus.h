#pragma once

#include <string>
#include <vector>

namespace deepinfer::bench {

/// A text to measure with, cut into documents at line ends.
struct Corpus {
  std::string name;
  std::vector<std::string> documents;
  size_t bytes = 0;
};

/// English, Chinese and code, at least `bytes` each, the same on every machine with the same sources and `files`.
///
/// English and Chinese start from embedded paragraphs (English also from the project's Markdown and `files`), code from the
/// project's own sources. They are then repeated, each time with the lines in another order and one word in twelve (one Chinese
/// character in twelve) replaced by another of the same text, or by a made-up one, so that a cache of words gains no more than
/// on a long real text.
std::vector<Corpus> make_corpora(size_t bytes, const std::vector<std::string>& files);

}  // namespace deepinfer::bench
