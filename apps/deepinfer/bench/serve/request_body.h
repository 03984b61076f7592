#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "workload.h"

namespace deepinfer::bench {

/// What the requests of a run have in common.
struct RequestFormat {
  bool chat = false;   ///< Chat Completions, else Completions
  bool words = false;  ///< Completions: the prompt is text, else token ids
  std::string model;
  double temperature = 0;
  bool ignore_eos = true;
  bool include_usage = true;                                        ///< stream_options
  bool max_completion_tokens = false;                               ///< the newer name of max_tokens
  nlohmann::ordered_json extra = nlohmann::ordered_json::object();  ///< members of each body
};

/// Common words, each about one token of any tokenizer.
std::string words_of(std::span<const int32_t> ids);

/// The JSON of a turn. `turns` are the requests of its session up to it, `answers` what the model said to those before it.
std::string request_body(const RequestFormat& format, std::span<const PlannedRequest> turns,
                         std::span<const std::string> answers);

}  // namespace deepinfer::bench
