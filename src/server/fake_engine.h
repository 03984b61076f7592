#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "deepinfer/engine.h"
#include "tokenizer/tokenizer.h"

namespace deepinfer::server {

struct FakeEngineOptions {
  double rate = 100;                 ///< tokens a second of each choice; 0: as fast as it goes
  int64_t tokens = 32;               ///< of an answer, unless the request wants fewer
  double first_delay = 0;            ///< seconds before the first token
  int64_t pages = int64_t{1} << 20;  ///< of 128 tokens, against which the length of a request is checked
  bool timestamps = false;           ///< the text of token k is "k:T ", T its time in ns of the steady clock: for load tools
  std::string text = "The fox carried the lamp through the quiet wood. ";  ///< repeated; special tokens may be spelled
};

/// An engine without a model: a fixed text at a fixed rate. Limits, queue, cancellation and usage are those of the real one, so
/// that servers and load tools can be tried with nothing but a tokenizer.json.
///
/// A prompt that contains "[[reply]]TEXT[[/reply]]" is answered with TEXT (the last such one counts), special tokens and all:
/// tests say what the model is to say. In a prompt that has opened a think block, other answers think first.
std::unique_ptr<Engine> make_fake_engine(std::shared_ptr<const Tokenizer> tokenizer, EngineOptions options,
                                         FakeEngineOptions fake);

}  // namespace deepinfer::server
