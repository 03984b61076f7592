#pragma once

namespace deepinfer {

/// The one custom tool of Responses (spec/protocol §11), as the model sees it: a function of one string, `input`.
extern const char* const kApplyPatchDescription;
extern const char* const kApplyPatchParameters;

}  // namespace deepinfer
