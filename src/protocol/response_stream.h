#pragma once

// From the engine's outputs to the events and the final object of one API (spec/protocol §8-§11).

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "deepinfer/output.h"
#include "protocol/converted_request.h"
#include "tokenizer/tokenizer.h"

namespace deepinfer {

/// One server-sent event. `name` is empty for APIs that send bare data lines.
struct ServerEvent {
  std::string name = {};
  std::string data = {};  ///< one line of JSON, or "[DONE]"
  friend bool operator==(const ServerEvent&, const ServerEvent&) = default;
};
using ServerEvents = std::vector<ServerEvent>;

/// "event: NAME\ndata: DATA\n\n", without the first line if there is no name.
std::string sse_frame(const ServerEvent& event);
/// What keeps an idle connection open: a ping event for Messages, a comment line otherwise.
std::string sse_keep_alive(Api api);

/// What the server decides about a response. Ids and times come from outside, so that a response can be repeated.
struct ResponseInfo {
  std::string id = {};                                 ///< "chatcmpl-", "cmpl-", "msg_" or "resp_" and something random
  int64_t created = 0;                                 ///< Unix seconds
  std::optional<std::string> system_fingerprint = {};  ///< of the server and checkpoint
  bool reasoning_usage = true;                         ///< report the tokens of the reasoning; off in the conformance vectors
};

/// Progress of the answers to one request, all choices. Not thread-safe; one per request.
///
/// push() is called with every Output of the request in the order in which the engine gives them, and returns the events that
/// follow from it: a streaming server sends them, a non-streaming one drops them and sends body() when done() is true. Both come
/// from one fold: body() is what the events add up to.
class ResponseStream {
 public:
  virtual ~ResponseStream() = default;

  /// News of one choice. `now` is the time in Unix seconds (Responses report when they completed). Outputs of a choice that is
  /// finished are ignored. `prompt` counts the prompts of a Completions request.
  ///
  /// FinishReason::kCancelled, kDeadline and kError end the whole response like fail().
  virtual ServerEvents push(const Output& output, int64_t now, int64_t prompt = 0) = 0;

  /// The response cannot be completed: the events that say so. The response is then done() and failed().
  virtual ServerEvents fail(const ApiError& error) = 0;

  /// Every choice has finished. The engine may still be running one whose stop string was found here: cancel the request.
  virtual bool done() const = 0;
  /// The choice has finished, by the engine or by a stop string that was found here.
  virtual bool finished(int64_t index) const = 0;
  /// Set after fail(): answer with this instead of body() if nothing was sent yet.
  virtual const std::optional<ApiError>& failed() const = 0;

  /// Doubled-bar tool markers in the answers so far (§17.18): the model has copied markup that some server leaked.
  virtual int64_t foreign_markers() const { return 0; }

  /// The non-streaming response. Only when done() and not failed().
  virtual std::string body() const = 0;
};

/// The stream for a converted request. `tokenizer` names the tokens of log-probs; it may be null if none were asked for.
std::unique_ptr<ResponseStream> make_response_stream(const ConvertedRequest& request, ResponseInfo info,
                                                     std::shared_ptr<const Tokenizer> tokenizer);
/// The same for Completions. `prompt_ids`: the encoded prompts, which an echo with log-probs needs.
std::unique_ptr<ResponseStream> make_completion_stream(const CompletionRequest& request, ResponseInfo info,
                                                       std::shared_ptr<const Tokenizer> tokenizer,
                                                       std::vector<std::vector<int32_t>> prompt_ids = {});

}  // namespace deepinfer
