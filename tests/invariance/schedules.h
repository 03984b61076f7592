#pragma once

#include "invariance/invariance.h"

namespace deepinfer::testing {

/// Runs `steps` random steps on up to `width` sequences: in each, some of them get new tokens in one batch (decode, several rows,
/// or a prompt chunk), some roll back, some skip the decoder for a while, some start again: with nothing, behind a cached prefix,
/// from a snapshot of another, or as its fork. At the end every sequence is held against its tokens alone.
void run_random_schedule(Subject& subject, uint64_t seed, int steps, int64_t width, int64_t longest);

}  // namespace deepinfer::testing
