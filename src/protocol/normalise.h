#pragma once

#include <vector>

#include "protocol/conversation.h"

namespace deepinfer {

/// Messages as the template wants them (spec/protocol §4.1): user turns in a row joined, system messages where the version has
/// them, tool results in the order of their calls.
std::vector<Message> normalise_messages(const std::vector<Message>& messages, ModelVersion version);

/// Appends `from` to `to`: contents with `separator` between, images with their places.
void append_content(Message& to, const Message& from, std::string_view separator);

}  // namespace deepinfer
