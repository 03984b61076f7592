#include "ops/cuda/cuda_features.h"

#include <fmt/format.h>

namespace deepinfer {
namespace {

struct Feature {
  std::string_view name;
  bool CudaFeatures::*flag;
};
constexpr Feature kFeatures[] = {
    {"overlap", &CudaFeatures::overlap},
    {"beside", &CudaFeatures::beside},
    {"fused", &CudaFeatures::fused},
    {"arranged", &CudaFeatures::arranged},
    {"wide-attention", &CudaFeatures::wide_attention},
    {"wide-index", &CudaFeatures::wide_index},
    {"staged", &CudaFeatures::staged},
    {"widened", &CudaFeatures::widened},
    {"panels", &CudaFeatures::panels},
    {"streamed", &CudaFeatures::streamed},
    {"few-rows", &CudaFeatures::few_rows},
    {"split", &CudaFeatures::split},
    {"engram-ahead", &CudaFeatures::engram_ahead},
};

}  // namespace

Result<CudaFeatures> parse_cuda_features(std::string_view text) {
  CudaFeatures out;
  if (text == "none") return out;
  if (text == "all") {
    for (const Feature& f : kFeatures) out.*f.flag = true;
    return out;
  }
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string_view name = text.substr(at, end - at);
    bool known = false;
    for (const Feature& f : kFeatures) {
      if (f.name == name) out.*f.flag = known = true;
    }
    if (!known) {
      return Err(Status::InvalidArgument("cuda_features: \"{}\" is none of {}, all, none", name,
                                         cuda_features_text(*parse_cuda_features("all"))));
    }
    at = end + 1;
  }
  return out;
}

std::string cuda_features_text(const CudaFeatures& features) {
  std::string out;
  for (const Feature& f : kFeatures) {
    if (features.*f.flag) out += fmt::format("{}{}", out.empty() ? "" : ",", f.name);
  }
  return out.empty() ? "none" : out;
}

}  // namespace deepinfer
