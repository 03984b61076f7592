#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "protocol/render_v4.h"

namespace deepinfer {

/// Collects the segments of a prompt.
class SegmentBuilder {
 public:
  void special(std::string_view literal) { out_.segments.push_back(PromptSegment::Special(literal)); }
  void text(std::string_view text) {
    if (!text.empty()) out_.segments.push_back(PromptSegment::Text(text));
  }
  void image(const ImageRef& image) {
    out_.segments.push_back(PromptSegment::Image());
    out_.images.push_back(image);
  }
  RenderedPrompt take() { return std::move(out_); }

 private:
  RenderedPrompt out_;
};

}  // namespace deepinfer
