#include "model/sequence_state.h"

#include <algorithm>
#include <cstdlib>

namespace deepinfer {
namespace {

class HeapPages final : public PageAllocator {
 public:
  HeapPages(int64_t page_bytes, DeviceMemory* memory) : bytes_(page_bytes), memory_(memory) {}
  uint8_t* allocate() override { return static_cast<uint8_t*>(memory_->allocate(bytes_)); }
  void free(uint8_t* page) override { memory_->free(page); }

 private:
  int64_t bytes_;
  DeviceMemory* memory_;
};

}  // namespace

PageLayout::PageLayout(const ModelConfig& config)
    : main_row_bytes(config.main_row_bytes()), index_row_bytes(config.index_row_bytes()) {
  for (int64_t layer : config.kv_source_layer_ids) {
    Source source;
    source.layer = layer;
    source.ratio = config.compress_ratio(layer);
    source.rows_per_page = kPagePositions / source.ratio;
    source.main_offset = page_bytes;
    page_bytes += source.rows_per_page * main_row_bytes;
    source.index_offset = page_bytes;
    page_bytes += source.rows_per_page * index_row_bytes;
    sources.push_back(source);
  }
}

std::unique_ptr<PageAllocator> make_heap_pages(int64_t page_bytes, DeviceMemory* memory) {
  return std::make_unique<HeapPages>(page_bytes, memory);
}

SequenceState::SequenceState(const ModelConfig& config, const PageLayout& layout, PageAllocator* pages, int64_t slack,
                             DeviceMemory* memory)
    : layout_(&layout),
      allocator_(pages),
      slack_(slack),
      window_(config.sliding_window),
      window_capacity_(config.sliding_window + slack),
      window_row_bytes_(config.window_row_bytes()),
      tail_capacity_(slack + 2),
      head_dim_(config.head_dim),
      layers_(config.num_hidden_layers),
      draft_stages_(config.num_nextn_predict_layers),
      first_decoder_layer_(config.first_decoder_layer()),
      pair_sources_(std::count_if(layout.sources.begin(), layout.sources.end(), [](const auto& s) { return s.ratio == 2; })),
      keeps_history_(!config.engram_layer_ids.empty()),
      memory_(memory),
      windows_(memory, (config.num_hidden_layers + config.num_nextn_predict_layers) * window_capacity_ * window_row_bytes_),
      tails_(memory, static_cast<int64_t>(layout.sources.size()) * tail_capacity_ * 2 * head_dim_) {
  DI_CHECK(slack >= 0, "slack = {}", slack);
}

SequenceState::~SequenceState() { keep_pages(0); }

void SequenceState::keep_pages(int64_t count) {
  while (page_count() > count) {
    if (allocator_ != nullptr) allocator_->free(pages_.back());
    pages_.pop_back();
  }
}

Status SequenceState::reserve(int64_t length) {
  const int64_t need = pages_for(length);
  if (borrows_pages() && page_count() < need) {
    return Status::ResourceExhausted("KV cache: {} positions need {} pages, {} have been appended", length, need, page_count());
  }
  const int64_t had = page_count();
  while (page_count() < need) {
    uint8_t* page = allocator_->allocate();
    if (page == nullptr) {
      const int64_t got = page_count();
      keep_pages(had);
      return Status::ResourceExhausted("KV cache: {} pages of {} bytes needed for {} positions, {} could be had", need,
                                       layout_->page_bytes, length, got);
    }
    pages_.push_back(page);
  }
  // Doubling: a decode step must not copy the history each time.
  if (history_.capacity() < static_cast<size_t>(length))
    history_.reserve(std::max(static_cast<size_t>(length), 2 * history_.capacity()));
  return Status::Ok();
}

void SequenceState::append_pages(std::span<uint8_t* const> pages) {
  DI_CHECK(borrows_pages(), "the state has pages of its own");
  pages_.insert(pages_.end(), pages.begin(), pages.end());
}

void SequenceState::drop_pages(int64_t count) {
  DI_CHECK(borrows_pages(), "the state has pages of its own");
  DI_CHECK(count >= 0 && page_count() - count >= pages_for(length_), "{} of {} pages dropped at length {}", count, page_count(),
           length_);
  keep_pages(page_count() - count);
}

void SequenceState::release_reserved(int64_t count) {
  DI_CHECK(count >= pages_for(length_), "{} pages cannot hold {} positions", count, length_);
  if (!borrows_pages()) keep_pages(count);
}

Status SequenceState::truncate(int64_t length) {
  if (length < 0 || length > length_) return Status::OutOfRange("truncate to {}: the sequence has {} positions", length, length_);
  if (length < length_ && length < write_floor_) {
    return Status::FailedPrecondition("truncate to {}: the first {} positions belong to a cached prefix", length, write_floor_);
  }
  if (length == 0) {
    high_ = 0;
  } else if (length < high_ - slack_) {
    return Status::FailedPrecondition("truncate to {}: the sequence reached {} and keeps {} positions for rollback", length,
                                      high_, slack_);
  }
  length_ = length;
  decoder_rows_from_ = std::min(decoder_rows_from_, length);
  draft_end_ = std::min(draft_end_, length);
  draft_start_ = std::min(draft_start_, draft_end_);
  if (keeps_history_) history_.resize(static_cast<size_t>(length));
  if (!borrows_pages()) keep_pages(pages_for(length));
  return Status::Ok();
}

void SequenceState::pretend(int64_t length) {
  DI_CHECK(length_ == 0 && borrows_pages(), "a state with {} positions cannot pretend", length_);
  pages_.assign(static_cast<size_t>(pages_for(length)), windows_.data());  // some address: nothing is read or written
  length_ = high_ = length;
}

void SequenceState::reset() {
  keep_pages(0);
  history_.clear();
  length_ = 0;
  high_ = 0;
  write_floor_ = 0;
  encoder_window_start_ = 0;
  decoder_start_ = 0;
  decoder_rows_from_ = 0;
  draft_start_ = 0;
  draft_end_ = 0;
}

void SequenceState::advance(int64_t count) {
  if (decoder_start_ > length_) decoder_rows_from_ = std::min(decoder_start_, length_ + count);
  length_ += count;
  high_ = std::max(high_, length_);
}

void SequenceState::advance_draft(int64_t position, int64_t count) {
  DI_CHECK(position >= 0 && count > 0 && position + count <= length_, "draft rows of {} positions from {} on, the length is {}",
           count, position, length_);
  if (position > draft_end_ || position < draft_start_) draft_start_ = position;
  draft_end_ = position + count;
}

Status SequenceState::begin(int64_t length, int64_t hit, std::span<const int32_t> history) {
  if (length_ != 0) return Status::FailedPrecondition("prefix: the sequence already has {} positions", length_);
  if (page_count() < pages_for(hit)) {
    return Status::FailedPrecondition("prefix: {} positions need {} pages, the sequence has {}", hit, pages_for(hit),
                                      page_count());
  }
  if (keeps_history_) {
    if (static_cast<int64_t>(history.size()) != length) {
      return Status::InvalidArgument("prefix: history of {} ids for {} positions", history.size(), length);
    }
    history_.assign(history.begin(), history.end());
  }
  length_ = length;
  high_ = length;
  write_floor_ = hit;
  encoder_window_start_ = length;
  decoder_rows_from_ = length;
  draft_start_ = length;
  draft_end_ = length;
  return Status::Ok();
}

Status SequenceState::adopt(int64_t hit_length, int64_t replay_from, std::span<const int32_t> history) {
  if (hit_length < 0 || replay_from < 0 || replay_from > hit_length) {
    return Status::OutOfRange("prefix: replay from {}, the hit has {} positions", replay_from, hit_length);
  }
  if (pair_sources_ > 0 && hit_length % 2 == 1 && replay_from == hit_length) {
    return Status::InvalidArgument("prefix: a hit of {} positions leaves a pair open, so its last one must be replayed",
                                   hit_length);
  }
  return begin(replay_from, hit_length, history);
}

Status SequenceState::set_decoder_start(int64_t position) {
  position = std::max<int64_t>(position, 0);
  if (first_decoder_layer_ == layers_ || position == decoder_start_) return Status::Ok();
  if (position < length_) {
    return Status::FailedPrecondition("decoder_start {}: the sequence already has {} positions", position, length_);
  }
  decoder_start_ = position;
  return Status::Ok();
}

Status SequenceState::copy_from(const SequenceState& other) {
  if (!borrows_pages()) return Status::FailedPrecondition("fork: the state has pages of its own");
  if (length_ != 0) return Status::FailedPrecondition("fork: the state already has {} positions", length_);
  if (&other == this || other.memory_ != memory_ || other.layers_ != layers_ ||
      other.first_decoder_layer_ != first_decoder_layer_ || other.window_capacity_ != window_capacity_ ||
      other.slack_ != slack_ || other.window_row_bytes_ != window_row_bytes_ || other.draft_stages_ != draft_stages_ ||
      other.tails_.size() != tails_.size()) {
    return Status::InvalidArgument("fork: the states are not two of one model");
  }
  memory_->copy(windows_.data(), other.windows_.data(), windows_.size());
  memory_->copy(tails_.data(), other.tails_.data(), tails_.size() * static_cast<int64_t>(sizeof(float)));
  history_.assign(other.history_.begin(), other.history_.end());
  length_ = other.length_;
  high_ = other.high_;
  write_floor_ = std::max(other.write_floor_, length_ / kPagePositions * kPagePositions);  // whole pages are shared from now on
  encoder_window_start_ = other.encoder_window_start_;
  decoder_start_ = other.decoder_start_;
  decoder_rows_from_ = other.decoder_rows_from_;
  draft_start_ = other.draft_start_;
  draft_end_ = other.draft_end_;
  return Status::Ok();
}

PagedRows SequenceState::main_rows(int64_t source) const {
  const PageLayout::Source& s = layout_->sources[static_cast<size_t>(source)];
  return {pages_.data(), s.rows_per_page, s.main_offset, layout_->main_row_bytes};
}

PagedRows SequenceState::index_rows(int64_t source) const {
  const PageLayout::Source& s = layout_->sources[static_cast<size_t>(source)];
  return {pages_.data(), s.rows_per_page, s.index_offset, layout_->index_row_bytes};
}

int64_t SequenceState::resident_bytes() const {
  return windows_.size() + tails_.size() * static_cast<int64_t>(sizeof(float)) +
         (borrows_pages() ? 0 : page_count() * layout_->page_bytes) + static_cast<int64_t>(history_.capacity() * sizeof(int32_t));
}

}  // namespace deepinfer
